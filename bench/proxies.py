"""How does a real reverse proxy stand before a server, on loopback, for as long as a benchmark needs it?"""

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

CONFIG = """
daemon off;
user root;
error_log stderr;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://{upstream};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering on;
      limit_rate 1500;
      proxy_ignore_headers X-Accel-Buffering;
      proxy_read_timeout 600s;
      gzip on;
      gzip_types text/event-stream;
      gzip_min_length 0;
      gzip_proxied any;
      postpone_output 64k;
    }}
  }}
}}
"""
"""An nginx that passes on 1,500 bytes of each answer in a second: some seven tokens as vLLM writes them."""


@contextmanager
def throttling_proxy(url):
    """The URL of an nginx that holds back the answers of the server at ``url``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="nginx-"))
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, upstream=urlsplit(url).netloc))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(config)])
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_up(address, process):
    until_s = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until_s:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)  # noqa: S310 -- our own loopback
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("nginx did not come up")
