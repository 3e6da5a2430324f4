# needs: python3
version() { echo "python3 -m http.server, $(python3 --version)"; }
try() {
	echo served >page
	setsid python3 -m http.server 8124 --bind 127.0.0.1 >log 2>&1 </dev/null &
	for _ in $(seq 50); do python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8124), 1)' 2>/dev/null && break; sleep 0.2; done
	equal "$(python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8124/page").read().decode(), end="")')" served
	python3 -c 'import socket; s = socket.create_server(("::1", 0), family=socket.AF_INET6); print(s.getsockname()[1] > 0)' | grep -q True
}
