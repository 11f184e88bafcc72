"""One browser server: found, launched, talked to, ended. The *.cjs files run in Node."""
