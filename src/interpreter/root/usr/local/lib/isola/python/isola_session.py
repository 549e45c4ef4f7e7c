"""How our kernels write messages: what cannot be written in UTF-8 must not take the message with it, and all that came behind
it in the same buffer."""
from jupyter_client.session import json_packer


def mended(text):
    """Half a character (a lone surrogate, as '\\ud800' makes one) as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def mended_all(value):
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, dict):
        return {mended_all(name): mended_all(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [mended_all(one) for one in value]
    return value


def packed(value):
    try:
        return json_packer(value)
    except UnicodeEncodeError:
        return json_packer(mended_all(value))


def use(config):
    config.Session.packer = "isola_session.packed"
