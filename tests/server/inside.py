"""Programs that tests start inside sandboxes."""
# As little Python as the smallest template has: no http.server there.
WEB_SERVER = rb"""
import os, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen(64)
while True:
    peer, _ = listener.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        head += peer.recv(65536)
    path = head.split(b" ")[1].split(b"?")[0].decode()
    if path == "/headers":
        status, body = "200 OK", head
    elif path == "/switch":
        peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
        continue
    elif os.path.isfile("/srv/www" + path):
        status, body = "200 OK", open("/srv/www" + path, "rb").read()
    else:
        status, body = "404 Not Found", b"no such page"
    peer.sendall(("HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))).encode() + body)
    peer.close()
"""

# A WebSocket server in a few lines: says where it was called, then sends back what it gets, as text or as bytes. A text
# "bye CODE" makes it close with that code; whoever closes gets the own code back.
ECHO_SOCKET = br"""
import base64, hashlib, socket, struct, threading
def frame(opcode, data):
    size = bytes([len(data)]) if len(data) < 126 else b'\x7e' + struct.pack('!H', len(data))
    return bytes([0x80 | opcode]) + size + data
def serve(peer):
    stream = peer.makefile('rb')
    target = stream.readline().split()[1]
    headers = {}
    while (line := stream.readline().strip()):
        name, value = line.split(b':', 1)
        headers[name.lower()] = value.strip()
    accept = hashlib.sha1(headers[b'sec-websocket-key'] + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest()
    peer.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n'
                 b'Sec-WebSocket-Protocol: ' + headers[b'sec-websocket-protocol'] + b'\r\n'
                 b'Sec-WebSocket-Accept: ' + base64.b64encode(accept) + b'\r\n\r\n' + frame(1, b'at ' + target))
    while True:
        head = stream.read(2)
        if len(head) < 2: return
        opcode, size = head[0] & 15, head[1] & 127
        if size == 126: size = struct.unpack('!H', stream.read(2))[0]
        mask, body = stream.read(4), stream.read(size)
        body = bytes(b ^ mask[i % 4] for i, b in enumerate(body))
        if opcode == 1 and body.startswith(b'bye '):
            opcode, body = 8, struct.pack('!H', int(body[4:])) + b'as you wish'
        peer.sendall(frame(opcode, body))
        if opcode == 8:
            peer.shutdown(socket.SHUT_RDWR)
            return
listener = socket.create_server(('0.0.0.0', 8003))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
