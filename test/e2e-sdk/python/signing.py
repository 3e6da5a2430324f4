"""Signed addresses, as a browser would use them: without the SDK."""

import httpx
from e2b.sandbox.signature import get_signature

from checks import equal, settle


def refused(response, message):
    equal((response.status_code, response.json()["code"]), (401, 401))
    assert message in response.json()["message"], response.text


def altered(address, **changes):
    url = httpx.URL(address)
    query = {**dict(url.params), **changes}
    return url.copy_with(params={key: value for key, value in query.items() if value is not None})


async def run(t):
    sandbox, files = t.sandbox, t.files
    path = "/home/user/signed/file ä"

    async def reads():
        await settle(files.write(path, "content"))
        for options in ({}, {"user": "user"}, {"use_signature_expiration": 3600}):
            response = httpx.get(sandbox.download_url(path, **options))
            equal((response.status_code, response.text), (200, "content"), f"{options} ")
        part = httpx.get(sandbox.download_url(path), headers={"Range": "bytes=2-4"})
        equal((part.status_code, part.headers["Content-Range"], part.text), (206, "bytes 2-4/7", "nte"))
        equal(httpx.get(sandbox.download_url("/home/user/missing")).status_code, 404)

    async def writes():
        address = sandbox.upload_url(path, use_signature_expiration=3600)
        response = httpx.post(address, files={"file": ("ignored", b"by form")})
        equal(response.status_code, 200)
        assert response.headers["Content-Type"].startswith("application/json")
        [told] = response.json()
        equal((told["name"], told["type"], told["path"]), ("file ä", "file", path))
        equal(await settle(files.read(path)), "by form")
        headers = {"Content-Type": "application/octet-stream"}
        equal(httpx.post(sandbox.upload_url(path), content=b"by stream", headers=headers).status_code, 200)
        equal(await settle(files.read(path)), "by stream")
        # Without a path each part names its own.
        several = [("file", ("/home/user/signed/one", b"1")), ("file", ("/home/user/signed/two", b"2"))]
        equal(httpx.post(sandbox.upload_url(""), files=several).status_code, 200)
        equal(await settle(files.read("signed/one")) + await settle(files.read("signed/two")), "12")

    async def bound():
        address = sandbox.download_url(path, use_signature_expiration=3600)
        refused(httpx.get(altered(address, signature=None)), "missing signature")
        refused(httpx.get(altered(address, path="/etc/passwd")), "invalid signature")
        refused(httpx.get(altered(address, username="user")), "invalid signature")
        refused(httpx.get(altered(address, signature_expiration="9999999999")), "invalid signature")
        headers = {"Content-Type": "application/octet-stream"}
        refused(httpx.post(address, content=b"x", headers=headers), "invalid signature")
        refused(httpx.get(sandbox.upload_url(path)), "invalid signature")
        refused(httpx.get(address, headers={"X-Access-Token": "wrong"}), "")
        late = get_signature(path, "read", None, sandbox._envd_access_token, -10)
        late_query = {"signature": late["signature"], "signature_expiration": str(late["expiration"])}
        refused(httpx.get(altered(address, **late_query)), "expired")
        equal(await settle(files.read(path)), "by stream")

    await t.check("a signed address reads", reads)
    await t.check("a signed address writes", writes)
    await t.check("a signature is for one thing", bound)
