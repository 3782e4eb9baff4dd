"""A server that writes the bytes of a file to one connection, in every way there is to write.

Reads commands from standard input, answers each with a line."""
import os, select, signal, socket, sys, threading

address, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
stream = open(path, "rb")
content = stream.read()
listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen()
connection, at = None, 0


def say(*words):
    print(*words, flush=True)


def write(how, size):
    """Hands `size` bytes to the kernel and says how many it took."""
    piece = content[at:at + size]
    half = len(piece) // 2
    fd = connection.fileno()
    if how == "send":
        return connection.send(piece)
    if how == "write":
        return os.write(fd, piece)
    if how == "writev":
        return os.writev(fd, [piece[:half], piece[half:]])
    if how == "sendmsg":
        return connection.sendmsg([piece[:half], piece[half:]])
    if how == "sendfile":
        return os.sendfile(fd, stream.fileno(), at, size)
    if how == "splice":
        reader, writer = os.pipe()
        os.write(writer, piece[:4096])
        taken = os.splice(reader, fd, min(size, 4096))
        os.close(reader)
        os.close(writer)
        return taken
    raise ValueError(how)


def write_all(how, size):
    global at
    end = at + size
    while at < end:
        at += write(how, end - at)


def fill(size=65536):
    """Writes until the kernel takes no more."""
    global at
    connection.setblocking(False)
    try:
        while True:
            at += write("send", size)
    except BlockingIOError:
        return at


def fill_asking(size):
    """Writes pieces for as long as the kernel says that it would take something."""
    global at
    while select.select([], [connection], [], 0)[1]:
        at += write("send", size)
    return at


def stream_to(end):
    """Goes on, without blocking, whenever the socket can be written to."""
    global at
    while at < end:
        select.select([], [connection], [])
        try:
            at += write("send", min(end - at, 300000))
        except BlockingIOError:
            pass


def background(job, *arguments):
    def run():
        try:
            job(*arguments)
            say("finished")
        except Exception as error:
            say("failed:", repr(error))
    threading.Thread(target=run, daemon=True).start()


say("listening")
for line in sys.stdin:
    command, *words = line.split()
    try:
        if command == "accept":
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            at = 0
            say("ok")
        elif command == "read":
            say(len(connection.recv(65536)))
        elif command == "fill":
            say(fill(*map(int, words)))
        elif command == "fill_asking":
            say(fill_asking(int(words[0])))
        elif command == "background":
            background(write_all, words[0], int(words[1]))
            say("ok")
        elif command == "stream":
            background(stream_to, int(words[0]))
            say("ok")
        elif command == "shutdown":
            connection.shutdown(socket.SHUT_WR)
            say("ok")
        elif command == "close":
            connection.close()
            say("ok")
        elif command == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            write_all(command, int(words[0]))
            say("ok")
    except Exception as error:
        say("failed:", repr(error))
