"""What every attack through the proxy has at hand: the proxy it was offered, and no proxy at all.

The mark is a word nobody outside may ever hear; whoever hears it notes it.
"""
import base64, os, socket, ssl, struct, sys, urllib.parse

MARK = sys.argv[1]
CRLF = "\r\n"


def offered():
    """The explicit proxy: its address and the header that shows its password, if it has one."""
    url = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY", ""))
    if not url.hostname:
        return None, ""
    if url.username is None:
        return (url.hostname, url.port), ""
    pair = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    return (url.hostname, url.port), f"Proxy-Authorization: Basic {pair}{CRLF}"


PROXY, AUTH = offered()


def quietly(work, *args):
    try:
        return work(*args)
    except (OSError, ValueError, ssl.SSLError):
        return None


def say(address, *parts):
    """Says each part and waits for an answer to it; returns the answers."""
    answers = []
    with socket.create_connection(address, 4) as stream:
        for part in parts:
            stream.sendall(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
            answers.append(quietly(stream.recv, 4096) or b"")
    return answers


def ask(name, kind=1):
    """Asks the name server of the internet itself; where a stub stands in for it, the stub."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    query = struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(2)
        stream.sendto(query, ("8.8.8.8", 53))
        reply = stream.recv(512)
    if struct.unpack(">H", reply[6:8])[0] == 0:
        return None
    return socket.inet_ntoa(reply[-4:]) if kind == 1 else socket.inet_ntop(socket.AF_INET6, reply[-16:])


def request(target, host, more=""):
    return f"GET {target} HTTP/1.1{CRLF}Host: {host}{CRLF}{AUTH}{more}{CRLF}"


def by_proxy(*parts):
    if PROXY:
        quietly(say, PROXY, *parts)


def tunnel(authority, *parts):
    by_proxy(f"CONNECT {authority} HTTP/1.1{CRLF}Host: {authority}{CRLF}{AUTH}{CRLF}", *parts)


def direct(name, *parts, port=80, kind=1):
    """Past the proxy: by the address the name has."""
    address = quietly(ask, name, kind)
    if address:
        quietly(say, (address, port), *parts)


def plain(host):
    return f"GET /{MARK} HTTP/1.1{CRLF}Host: {host}{CRLF}{CRLF}"


def every_way(host, port=80, kind=1):
    """A request for this host through the proxy, through a tunnel, and past both."""
    shown = host if port == 80 else f"{host}:{port}"
    by_proxy(request(f"http://{shown}/{MARK}", shown))
    tunnel(f"{host}:{port}", plain(shown))
    direct(host, plain(shown), port=port, kind=kind)


def hello(name):
    """The first message of a TLS client that names this server."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()
