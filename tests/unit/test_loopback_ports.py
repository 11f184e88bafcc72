"""The kernel's table of connections is read right, and a proxy's name is found out once (loopback_ports.cjs)."""

import json
import subprocess
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER

NODE, _ = compute_driver_executable()
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0501017F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11111 1 0 100 0 0 10 0
   1: 0501017F:9C40 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 22222 1 0 20 4 30 10 -1
   2: 0100007F:D431 0501017F:9C40 01 00000000:00000000 02:000AC1D9 00000000  1000        0 33333 2 0 20 4 30 10 -1
   3: 0100007F:D432 0501017F:9C40 06 00000000:00000000 03:00001234 00000000     0        0 0 3 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when \
retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:D433 0000000000000000FFFF00000501017F:9C40 01 00000000:00000000 00:00000000 \
00000000    65        0 44444 1 0 20 4 30 10 -1
"""


def run(script: str, *arguments: Any) -> Any:
    """What the script prints, as JSON, where the names of loopback_ports.cjs and socket_owner.cjs are known."""
    folder = LAUNCHER.parent
    head = (
        f"const dns = require('node:dns/promises');"
        f"const {{ LoopbackPorts }} = require({json.dumps(str(folder / 'guard/loopback_ports.cjs'))});"
        f"const {{ ownerIn }} = require({json.dumps(str(folder / 'guard/socket_owner.cjs'))});"
        f"const given = {json.dumps(arguments)};"
        f"(async () => {{ {script} }})().then(result => console.log(JSON.stringify(result)));"
    )
    done = subprocess.run([NODE, "-e", head], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("table", "version", "port", "owner"),
    [
        (TCP, 4, 0xD431, {"uid": 1000, "inode": 33333}),
        (TCP, 4, 0xD432, None),  # nobody has it any more
        (TCP, 4, 0xD430, None),
        (TCP6, 6, 0xD433, {"uid": 65, "inode": 44444}),
        (TCP6, 4, 0xD433, None),
        ("", 4, 0xD431, None),
    ],
)
def test_the_owner_of_a_connection_is_read_from_the_kernel_s_table(
    table: str, version: int, port: int, owner: dict[str, int] | None
) -> None:
    script = "require('node:os').endianness = () => 'LE'; return ownerIn(...given);"  # the table of such a machine
    assert run(script, table, version, ["127.0.0.1", port, "127.1.1.5", 0x9C40]) == owner


SETTLE = """
dns.lookup = async name => ({ address: given[1][name] });
const ports = new LoopbackPorts(() => {});
ports.addresses.set(40000, '127.1.1.5');
const settled = [];
for (const server of given[0]) {
  const options = { proxy: { server, bypass: 'x' } };
  try {
    await ports.settle(options, given[2]);
    settled.push(options.proxy.server);
  } catch (error) {
    settled.push(error.message);
  }
}
return settled;
"""
NAMES = {"honest.example": "192.0.2.1", "six.example": "2001:db8::1", "evil.example": "127.1.1.5"}
REFUSED = "the proxy {} is refused by the grid: it serves one session alone"


SETTLED = {
    "socks5://honest.example:1080": "socks5://192.0.2.1:1080",
    "socks5://honest.example": "socks5://192.0.2.1",
    "socks4://six.example:40000": "socks4://[2001:db8::1]:40000",
    "socks5://192.0.2.1:40000": "socks5://192.0.2.1:40000",
    "socks5://127.1.1.5:40001": "socks5://127.1.1.5:40001",
    "socks5://evil.example:40000": REFUSED,
    "socks5://2130772229:40000": REFUSED,
    "socks5://[::FFFF:127.1.1.5]:40000": REFUSED,
    "http://evil.example:40000": "http://evil.example:40000",  # it would be sent what is no SOCKS
    "https://honest.example": "https://honest.example",
}


def test_the_name_of_a_socks_proxy_is_found_out_before_the_browser_gets_it() -> None:
    assert run(SETTLE, list(SETTLED), NAMES, True) == [settled.format(server) for server, settled in SETTLED.items()]


LISTEN = """
const net = require('node:net');
const ports = new LoopbackPorts(() => {});
const { addresses } = ports;
const has = addresses.has.bind(addresses);
let looked = 0;
addresses.has = port => looked++ < given[0] || has(port);
const server = new net.Server();
await new Promise(done => ports.listen(server, null, done));
const { address, port } = server.address();
const open = [...addresses];
await new Promise(done => server.close(done));
return { looked, isOpen: JSON.stringify(open) === JSON.stringify([[port, address]]), address, left: addresses.size };
"""


def test_no_two_have_the_same_port_since_playwright_knows_them_by_that_alone() -> None:
    listened = run(LISTEN, 2)
    assert listened.pop("address").startswith("127.")
    assert listened == {"looked": 3, "isOpen": True, "left": 0}


def test_in_a_browser_of_its_own_only_one_socks_proxy_is_looked_at() -> None:
    """Playwright's own requests, which go to no list, come from a process that may use the ports of all."""
    left = ["http://a.example;socks=b.example:1", "socks5://a.example,b.example:40000", "proxy:3128", "10.0.0.1:3128"]
    assert run(SETTLE, left, NAMES, False) == left
    looked_at = ["socks5://honest.example:1080", "socks5://evil.example:40000", " SOCKS5://127.1.1.5:40000"]
    assert run(SETTLE, looked_at, NAMES, False) == [
        "socks5://192.0.2.1:1080",
        *(REFUSED.format(server) for server in looked_at[1:]),
    ]


PROVE = """
const [servers, socket] = [[{}, {}], { on() {}, isLost: false, destroy() { this.isLost = true; } }];
const ports = new LoopbackPorts(() => {});
const never = new Promise(() => {});
for (const server of servers)
  server.unproved = 0;
const unit = { process: { get pid() { throw new Error('no process is to be looked at'); } } };
servers[0].unproved = 64;
await ports.prove(servers[0], unit, false, null, socket);
const isLostAtFirst = socket.isLost;
const message = await ports.prove(servers[1], unit, false, null, socket).catch(error => error.message);
return [isLostAtFirst, message];
"""


def test_connections_to_one_port_that_are_not_proved_keep_none_from_another_one() -> None:
    assert run(PROVE) == [True, "no process is to be looked at"]
