"""PyInstaller's hook for programs that serve: the routes of all APIs, found by name, and the page's files."""

from PyInstaller.utils.hooks import collect_submodules

from satchel.server.page.files import STATIC

hiddenimports = collect_submodules("satchel.server")
datas = [(str(STATIC), "satchel/server/page/static")]
