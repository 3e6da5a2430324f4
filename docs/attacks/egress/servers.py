import http.server,sys,threading
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(s):
        b=("host=%s path=%s hdr=%s\n"%(s.headers.get('Host'),s.path,dict(s.headers))).encode(); s.send_response(200); s.send_header('Content-Length',str(len(b))); s.end_headers(); s.wfile.write(b)
    def log_message(*a): pass
ss=[http.server.ThreadingHTTPServer(('127.0.0.1',0),H) for _ in range(2)]
print(*[s.server_port for s in ss],flush=True)
for s in ss: threading.Thread(target=s.serve_forever,daemon=True).start()
import time; time.sleep(60)
