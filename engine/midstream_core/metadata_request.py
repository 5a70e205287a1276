"""Requests to the metadata service of a cloud's machine.

Standard library only; also sent to hosts.
"""

from __future__ import annotations

REQUEST_TIMEOUT = 2.0  # seconds


def metadata_answer(url: str, headers: dict[str, str], most: int, method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of an answer, at most ``most`` bytes of it.

    The status is 0 where there is no answer. The text is empty unless the request succeeded.
    """
    import http.client  # with TLS they take 2 MB, and most machines send no request
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(url, headers=headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=REQUEST_TIMEOUT) as answer:
            return answer.status, answer.read(most).decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, http.client.HTTPException, ValueError):
        return 0, ""
