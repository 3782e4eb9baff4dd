#!/usr/bin/env python3
"""Captures exchanges with real servers for tests/captured.rs: capture.py NGINX

Each capture is a JSON file: the pieces in the order in which a client sent and received them (bytes
as the characters of the same number), who ended the connection, and what Python's own HTTP client
made of the replies: status and length of the decoded body.
"""

import http.client
import http.server
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

QUIET_S = 0.3

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off; gzip on; gzip_types *; gzip_min_length 1;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port}; root {folder}/www;
        location /put/ {{ dav_methods PUT DELETE; }}
        location /text {{ return 200 "text\\n"; }}
    }}
}}
"""


class Python11(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in [b"a" * 10, b"\r\n0\r\n\r\n", b"b" * 300]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\nChecksum: none\r\n\r\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Python10(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"until the end\n" * 20)

    def log_message(self, *_):
        pass


class Received:
    """What http.client takes for a socket; it never reads beyond a reply."""

    def __init__(self, data):
        self.file = io.BytesIO(data)

    def makefile(self, _mode):
        received = self.file

        class File(io.BufferedIOBase):
            def readline(self, limit=-1):
                return received.readline(limit)

            def read(self, size=-1):
                return received.read(size)

            def readinto(self, buffer):
                return received.readinto(buffer)

        return File()


def exchange(port, steps):
    pieces, ended = [], "client"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(QUIET_S)
        for step in steps:
            sock.sendall(step)
            pieces.append(["client", step.decode("latin-1")])
            try:
                while piece := sock.recv(1000):
                    pieces.append(["server", piece.decode("latin-1")])
                ended = "server"
            except TimeoutError:
                pass
    return pieces, ended


def capture(name, port, methods, steps):
    pieces, ended = exchange(port, steps)
    received = Received("".join(p for side, p in pieces if side == "server").encode("latin-1"))
    replies = []
    for method in methods:
        reply = http.client.HTTPResponse(received, method=method)
        reply.begin()
        replies.append([reply.status, len(reply.read())])
    assert received.file.read() == b"", "the client understood all of it"
    result = {"pieces": pieces, "ended": ended, "replies": replies}
    path = pathlib.Path(__file__).parent / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(name, ended, replies)


def listening(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit(f"nobody listens on {port}")


def head(line, *fields):
    return "\r\n".join([f"{line} HTTP/1.1", "Host: h", *fields, "", ""]).encode()


def nginx(program, folder):
    www = pathlib.Path(folder, "www")
    (www / "put").mkdir(parents=True)
    (www / "a.txt").write_bytes(b"0123456789" * 400)
    os.utime(www / "a.txt", (1e9, 1e9))
    port = 18080
    config = pathlib.Path(folder, "nginx.conf")
    config.write_text(NGINX.format(folder=folder, port=port))
    server = subprocess.Popen([program, "-p", folder, "-c", str(config)])
    try:
        listening(port)
        get, gzip = head("GET /a.txt"), head("GET /a.txt", "Accept-Encoding: gzip")
        capture("nginx_kept_alive", port, ["GET", "HEAD", "GET", "GET", "GET", "GET", "GET"], [
            get, head("HEAD /a.txt"), gzip, head("GET /none"), head("GET /a.txt", "Range: bytes=5-14"),
            head("GET /a.txt", "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT"),
            head("GET /text", "Connection: close"),
        ])
        capture("nginx_pipelined", port, ["GET", "HEAD", "GET", "GET"], [
            b"\r\n" + get + head("HEAD /a.txt") + gzip + head("GET /text")[:10], head("GET /text")[10:],
        ])
        expect = head("PUT /put/x", "Expect: 100-continue", "Content-Length: 5")
        capture("nginx_uploads", port, ["PUT", "PUT", "DELETE", "POST"], [
            expect, b"hello", head("PUT /put/y", "Transfer-Encoding: chunked"),
            b"3;a=b\r\nabc\r\n", b"0\r\nA: b\r\n\r\n", head("DELETE /put/x"),
            head("POST /text", "Content-Length: 3") + b"abc",
        ])
        old = b"GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        capture("nginx_http10", port, ["GET", "GET"], [old, b"GET /a.txt HTTP/1.0\r\n\r\n"])
        upgrade = head("GET /text", "Upgrade: h2c, websocket", "Connection: Upgrade")
        capture("nginx_upgrade_ignored", port, ["GET", "GET"], [upgrade, get])
    finally:
        server.terminate()
        server.wait()


def python():
    cases = [
        (Python11, "python_http11", ["GET", "POST", "POST", "DELETE", "GET", "GET"], [
            head("GET /"), head("POST /", "Expect: 100-continue", "Content-Length: 4"), b"body",
            head("POST /", "Content-Length: 0"), head("DELETE /"),
            head("GET /") + head("GET /", "Connection: close"),
        ]),
        (Python11, "python_error", ["OPTIONS"], [head("OPTIONS *")]),
        (Python10, "python_http10", ["GET"], [b"GET / HTTP/1.0\r\n\r\n"]),
        (Python10, "python_http10_asked_in_http11", ["GET"], [head("GET /")]),
    ]
    for handler, name, methods, steps in cases:
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            capture(name, server.server_address[1], methods, steps)
            server.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        nginx(sys.argv[1], temporary)
    python()
