"""Post one JSON object to a URL, and print why that failed.

Standard input has the URL, a line break and the object: a URL may hold a secret, so it is on no command line.
Each call is a process of its own, which is killed at the deadline, whatever it waits for. urllib only has a
deadline for each read: a receiver that sends a byte a second, or a dead name server, would hold it for good.
"""

from __future__ import annotations

import sys
import urllib.request
from http.client import HTTPException
from typing import NoReturn
from urllib.error import HTTPError

from ddptop.protocol.outlets import print_text

READ_S = 10.0
"""Longest time of one read. The caller's deadline for the whole call is as long."""


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Receivers of alerts do not choose what this host requests: it may reach what they cannot."""

    def _refuse(self, req: object, fp: object, code: int, msg: object, headers: object) -> NoReturn:
        raise OSError(f"the receiver redirects ({code}), which is not followed: name the target itself")

    http_error_301 = http_error_302 = http_error_303 = http_error_307 = http_error_308 = _refuse


def post_alert(url: str, body: bytes) -> str:
    """POST `body` to `url`; why that failed, without the URL, or an empty text."""
    head = {"Content-Type": "application/json", "User-Agent": "ddptop"}
    try:
        request = urllib.request.Request(url, body, head, method="POST")
        with urllib.request.build_opener(_RefuseRedirects).open(request, timeout=READ_S):
            return ""
    except HTTPError as error:
        with error:
            return f"the receiver answers {error.code} ({error.reason})"
    except OSError as error:  # as urllib's own; none of them has the URL in its text
        return str(error)
    except (HTTPException, ValueError) as error:  # the text may have it, with a secret
        return type(error).__name__


if __name__ == "__main__":
    url, _, body = sys.stdin.buffer.read().partition(b"\n")
    print_text(post_alert(url.decode(errors="surrogateescape"), body), end="")
