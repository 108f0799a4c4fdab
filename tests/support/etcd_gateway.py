"""An etcd of our own behind the JSON gateway: keys and leases, and odd answers on demand."""

import base64
import contextlib
import json

from aiohttp import web


class Etcd:
    """Keys and leases behind the JSON gateway."""

    def __init__(self):
        self.keys = {}
        self.leases = {}
        self.granted = 0
        self.is_broken = False
        self.odd_answers = {}
        """What operations answer instead, as bytes."""
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def listening(cls):
        """Listen on a free port."""
        etcd = cls()
        runner = web.AppRunner(etcd.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        etcd.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield etcd
        finally:
            await runner.cleanup()

    def app(self):
        app = web.Application()
        app.router.add_post("/v3/{operation:.+}", self._handle)
        return app

    async def _handle(self, request):
        if self.is_broken:
            return web.json_response({"error": "broken"}, status=503)
        operation = request.match_info["operation"].replace("/", "_")
        if operation in self.odd_answers:
            return web.Response(body=self.odd_answers[operation])
        return web.json_response(getattr(self, operation)(await request.json()))

    def lease_grant(self, body):
        self.granted += 1
        self.leases[str(self.granted)] = body["TTL"]
        return {"ID": str(self.granted), "TTL": str(body["TTL"])}

    def lease_keepalive(self, body):
        ttl = self.leases.get(body["ID"])
        return {"result": {"ID": body["ID"]} | ({"TTL": str(ttl)} if ttl else {})}

    def lease_revoke(self, body):
        self.leases.pop(body["ID"], None)
        self.keys = {key: item for key, item in self.keys.items() if item[1] != body["ID"]}
        return {}

    def kv_put(self, body):
        assert body["lease"] in self.leases
        self.put(base64.b64decode(body["key"]).decode(), body["value"], body["lease"])
        return {}

    def kv_range(self, body):
        start, end = (base64.b64decode(body[name]).decode() for name in ("key", "range_end"))
        found = [key for key in self.keys if start <= key < end]
        return {"kvs": [{"key": base64_of(key), "value": self.keys[key][0]} for key in found]}

    def kv_deleterange(self, body):
        del self.keys[base64.b64decode(body["key"]).decode()]
        return {"deleted": "1"}

    def put(self, key, value, lease):
        self.keys[key] = (value, lease)

    def document(self, key):
        return json.loads(base64.b64decode(self.keys[key][0]))


def base64_of(text):
    return base64.b64encode(text.encode()).decode()
