# A shop whose replies cannot be made twice: random pages, random order numbers, the time of day.
# It writes one line into a log of its own for each request that it executes, when it does; so the
# logs tell how often each request was executed, and by whom.
#
# `shop(node, folder)` is one instance, as a WSGI application.
import collections, hashlib, itertools, os, random, secrets, signal, time

LONGEST_PAGE = 200_000  # bytes
LONGEST_PAUSE = 0.004  # seconds
chance = random.SystemRandom()


def shop(node, folder):
    instance = f"{node}-{os.getpid()}-{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(f"{folder}/shop-{instance}.log", flags, 0o644)
    # gunicorn's workers end in good order, with their connections, when they are aborted.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    numbers, sold = itertools.count(1), collections.deque(maxlen=200)

    def execute(request, method):
        order, number = secrets.randbits(63), next(numbers)
        at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(log, f"{request} {method} {order} {instance} {number} {at_ns}\n".encode())
        return order, number

    def application(environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        request = environ.get("HTTP_X_REQUEST_ID", "none")
        upload = hash_of(environ["wsgi.input"])
        pause()
        order, number = execute(request, method)
        length, status = None, "200 OK"
        if (method, path) == ("HEAD", "/page"):
            body, length = b"", page_length()
        elif (method, path) == ("GET", "/page"):
            body = os.urandom(page_length())
            length = chance.choice([len(body), None])
        elif (method, path) == ("GET", "/orders"):
            body = "".join(f"{order} {request}\n" for order, request in sold).encode()
            length = chance.choice([len(body), None])
        elif (method, path) == ("POST", "/buy"):
            sold.append((order, request))
            body = f"order {order} for {request}\n".encode()
            length = len(body)
        elif (method, path) == ("POST", "/upload"):
            body = upload.encode()
            length = len(body)
        else:
            body, status = b"There is no such page.\n", "404 Not Found"
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("X-Request-Id", request),
            ("X-Instance", instance),
            ("X-Number", str(number)),
            ("X-Order", str(order)),
            # Of what follows this head: nothing, if it answers HEAD.
            ("X-Body-Sha256", hashlib.sha256(body).hexdigest()),
        ]
        if length is not None:
            headers.append(("Content-Length", str(length)))
        start_response(status, headers)
        return pieces(body)

    return application


def page_length():
    return int(LONGEST_PAGE * chance.random() ** 3)  # short ones are more frequent


def pieces(body):
    at = 0
    while at < len(body):
        size = chance.randint(1, 64_000)
        yield body[at : at + size]
        at += size
        pause()


def hash_of(upload):
    hash = hashlib.sha256()
    while part := upload.read(1 << 16):
        hash.update(part)
    return hash.hexdigest()


def pause():
    time.sleep(LONGEST_PAUSE * chance.random())
