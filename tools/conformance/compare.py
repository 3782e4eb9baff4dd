"""Prints, as a table, what differs between tests that ran as they are and the same under the runtime.

    compare.py OUT PAGE COLLECTION...

A test that ended in several ways as it is, is unsteady: it differs only if it never ended like that.
"""

import collections
import pathlib
import sys


def results(folder, how):
    """What became of each test, each time."""
    became = collections.defaultdict(set)
    for file in folder.glob(f"*.{how}.*.results"):
        for line in file.read_text(errors="replace").splitlines():
            name, _, what = line.partition("\t")
            became[name].add(what)
    return became


def differs(native, under):
    return not under <= native or (len(native) == 1 and native != under)


def main(out, page, *collections_):
    page = pathlib.Path(page)
    explained = page.read_text() if page.exists() else ""
    rows, unexplained = [], 0
    for collection in collections_:
        folder = pathlib.Path(out, collection)
        native, under = results(folder, "native"), results(folder, "passthrough")
        names = sorted(native.keys() | under.keys())
        found = [name for name in names if differs(native[name], under[name])]
        print(f"{collection}: {len(names)} tests, {len(found)} differ")
        for name in found:
            known = f"`{collection} {name}`" in explained
            unexplained += not known
            words = [", ".join(sorted(all[name])) or "not run" for all in (native, under)]
            rows.append([collection, name, *words, "yes" if known else "no"])
    if rows:
        print("\n| collection | test | as it is | passthrough | explained |\n|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
