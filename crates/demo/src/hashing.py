# Serves files, and answers an upload with its hash. Arguments: address, port, folder.
import functools, hashlib, http.server, socket, sys


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_PUT(self):
        left, hash = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            part = self.rfile.read(min(left, 1 << 20))
            if not part:
                return
            hash.update(part)
            left -= len(part)
        answer = hash.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    request_queue_size = 128


handler = functools.partial(Handler, directory=sys.argv[3])
Server((sys.argv[1], int(sys.argv[2])), handler).serve_forever()
