# needs: chromium
version() { chromium --version 2>/dev/null; }
try() {
	echo '<title>page</title><h1 id=x>plain</h1><script>document.getElementById("x").textContent = "made by " + [1, 2, 3].map(n => n * 2).join()</script>' >page.html
	python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &
	server=$!
	# Its own sandbox needs namespaces, which a sandbox here does not hand on.
	quiet="--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking --disable-component-update --disable-sync --user-data-dir=$PWD/profile"
	for _ in $(seq 50); do python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8123), 1)' 2>/dev/null && break; sleep 0.2; done
	chromium $quiet --dump-dom http://127.0.0.1:8123/page.html 2>/dev/null | grep -q 'made by 2,4,6'
	chromium $quiet --print-to-pdf=page.pdf http://127.0.0.1:8123/page.html 2>/dev/null
	kill $server
	equal "$(head -c 5 page.pdf)" "%PDF-"
}
