// Joins each client with a connection to another port by io.Copy, one goroutine for each way, as a relay in Go is written.
// On Linux io.Copy between two TCP connections is splice(). Arguments: the port to listen on, the port to connect to.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func copyOneWay(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			server, err := net.Dial("tcp", "127.0.0.1:"+os.Args[2])
			if err != nil {
				client.Close()
				return
			}
			go copyOneWay(server.(*net.TCPConn), client.(*net.TCPConn))
			copyOneWay(client.(*net.TCPConn), server.(*net.TCPConn))
		}()
	}
}
