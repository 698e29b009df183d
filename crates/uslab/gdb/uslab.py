"""Commands for gdb that show the caches and objects of a process that allocates by uslab.

    (gdb) source uslab.py
    (gdb) uslab help

They read a live process or a core, and change nothing. They need no debug information: the
library describes its structures in the section `uslab_gdb` (crates/uslab/src/cache/gdb.rs), which
stays in stripped files. A process has such a section for each copy of the library in it.

A stopped process may be in the middle of a change of any structure. So a command reads no more
links than counts allow, and reports memory that it cannot read.
"""

import re
import struct

import gdb

VERSION = 3
NO_SLAB = 0xFFFF_FFFF
FAMILIES = {1: "a cache", 2: "malloc", 3: "operator new", 4: "operator new[]"}
MAX_FRAMES = 16
MAX_LOCALS = 100_000
HELP = """\
uslab caches                  the caches: live objects, free objects in sheaves, slabs
uslab find ADDRESS            the object around an address, its state and its history
uslab objects CACHE [LIMIT]   the live objects of a cache, by name or id; 20 unless LIMIT is given
uslab help                    this text

An ADDRESS is any expression. Histories need letter U: USLAB_DEBUG=U, or USLAB_STORE_USER."""


def read(address, size):
    try:
        return gdb.selected_inferior().read_memory(address, size).tobytes()
    except gdb.MemoryError:
        raise gdb.GdbError("uslab: cannot read %d bytes at 0x%x" % (size, address))


def u32(address):
    return struct.unpack("<I", read(address, 4))[0]


def u64(address):
    return struct.unpack("<Q", read(address, 8))[0]


def words(address, count):
    return struct.unpack("<%dQ" % count, read(address, 8 * count)) if count > 0 else ()


class Library:
    """One copy of the library."""

    def __init__(self, table, file):
        self.file = file
        magic, version, count, facts, *roots = struct.unpack("<8sIIQQQQQQ", read(table, 64))
        if magic != b"uslabgdb" or version != VERSION:
            raise gdb.GdbError("uslab: this script does not fit the library in %s" % file)
        self.cores, self.used_ids, arena, self.depot, self.first_local = roots
        self.facts = {}
        for name, number in struct.iter_unpack("<40sQ", read(facts, 48 * count)):
            self.facts[name.rstrip(b"\0").decode()] = number
        self.base = u64(arena + self.facts["Arena.base"])
        self.committed = u64(arena + self.facts["Arena.committed_bytes"])
        self.page_bytes = self.facts["pages.page_bytes"]

    def contains(self, address):
        return self.base <= address < self.base + self.committed

    def page_of(self, address):
        return (address - self.base) // self.page_bytes

    def address_of(self, page):
        return self.base + page * self.page_bytes

    def owner(self, page):
        return u64(self.base - self.facts["pages.map_below"] + 8 * page)

    def id_of(self, owner):
        return u32(owner + self.facts["Slot.id"]) & 0xFFFF

    def descriptor(self, page):
        table = self.base - self.facts["pages.descriptors_below"]
        return table + page * self.facts["pages.descriptor_bytes"]

    def cache(self, id):
        core = u64(self.cores + 8 * id)
        return Cache(self, id, core) if core else None

    def caches(self):
        first, end = self.facts["id.first_cache"], u32(self.used_ids)
        cores = words(self.cores + 8 * first, end - first)
        return [Cache(self, first + n, core) for n, core in enumerate(cores) if core]

    def locals(self):
        """The slots of threads' own, of all caches. A stopped process may change the ring."""
        first = at = u64(self.first_local)
        seen = set()
        while at and at not in seen and len(seen) < MAX_LOCALS:
            seen.add(at)
            yield at
            at = u64(at + self.facts["Local.links"] + self.facts["Links.next"])
            if at == first:
                return

    def frames(self, stack):
        """The frames of a stack of the depot."""
        depot = u64(self.depot)
        if depot == 0 or not self.facts["depot.first"] <= stack < self.facts["depot.words"]:
            return ()
        return words(depot + 8 * stack + 8, min(u32(depot + 8 * stack), MAX_FRAMES))

    def around(self, page):
        """The first page of the run that contains a page without an owner, and the run's owner."""
        none, end = self.owner(page), page
        while end > 0:
            start = max(0, end - 4096)
            entries = words(self.base - self.facts["pages.map_below"] + 8 * start, end - start)
            for n in range(len(entries) - 1, -1, -1):
                if entries[n] != none:
                    return start + n, entries[n]
            end = start
        return None


def libraries():
    """The copies of the library in the process or core, those that are set up."""
    pattern = re.compile(r"^\s*(0x[0-9a-f]+) - 0x[0-9a-f]+ is uslab_gdb(?: in (.*))?$", re.M)
    text = gdb.execute("info files", to_string=True)
    found = [(int(at, 16), file or "the program") for at, file in pattern.findall(text)]
    if not found:
        raise gdb.GdbError("uslab: no section uslab_gdb: the process does not run on uslab")
    ready = [library for library in (Library(*one) for one in found) if library.base]
    if not ready:
        raise gdb.GdbError("uslab: nothing was allocated yet, or there is no process")
    return ready


class Slabs:
    """Slabs of one cache, or of a class of a private heap that has no cache."""

    def __init__(self, library, address):
        facts, geometry = library.facts, address + library.facts["Slabs.geometry"]
        self.library, self.address = library, address
        self.stride = u64(geometry + facts["Geometry.object_bytes"])
        self.objects = u64(geometry + facts["Geometry.objects"])
        self.order = u32(geometry + facts["Geometry.order"])
        self.pages = u64(geometry + facts["Geometry.pages"])
        first, count = u64(address + facts["Slabs.tallies"]), u64(address + facts["Slabs.tally_count"])
        tallies = [first + n * facts["Tally.bytes"] for n in range(count)] + [address + facts["Slabs.own"]]
        words = [read(at + facts["Tally.taken"], 8) for at in tallies]
        self.taken = sum(struct.unpack("<q", word)[0] for word in words)
        groups, count = u64(address + facts["Slabs.groups"]), u64(address + facts["Slabs.group_count"])
        self.lists = [groups + n * facts["Group.bytes"] + facts["Group.lists"] for n in range(count)]

    def count(self):
        """The number of slabs."""
        counts = self.library.facts["Lists.counts"]
        return sum(sum(struct.unpack("<6I", read(at + counts, 24))) for at in self.lists)

    def first_pages(self):
        """The first page of each slab, in the order of addresses."""
        facts, found = self.library.facts, set()
        most = self.count() + 64
        for lists in self.lists:
            for page in struct.unpack("<6I", read(lists + facts["Lists.heads"], 24)):
                while page != NO_SLAB and page not in found and len(found) < most:
                    found.add(page)
                    page = u32(self.library.descriptor(page) + facts["Head.next"])
        return sorted(found)

    def bitmap(self, page):
        """The bits of a slab's free objects."""
        head = self.library.facts["Head.bytes"]
        size = (self.objects + 63) // 64 * 8
        return int.from_bytes(read(self.library.descriptor(page) + head, size), "little")

    def place(self, address, spill=0):
        """The slab's first page and the object's index at an address; no index beyond the objects,
        which begin `spill` bytes behind their start."""
        page = self.library.page_of(address) & ~((1 << self.order) - 1)
        index = (address - spill - self.library.address_of(page)) // self.stride
        return page, index if 0 <= index < self.objects else None


class Cache:
    def __init__(self, library, id, core):
        facts = library.facts
        self.library, self.id, self.core = library, id, core
        length = min(u64(core + facts["Core.name_len"]), 64)
        self.name = read(core + facts["Core.name"], length).decode(errors="replace")
        self.bytes = u64(core + facts["Core.user_bytes"])
        self.offset = u64(core + facts["Core.pointer_offset"])
        # The object's own bytes begin with its record; those before it are of the object before.
        self.record_offset = u64(core + facts["Core.record_offset"])
        self.has_users = read(core + facts["Core.has_users"], 1) != b"\0"
        self.cpu = core + facts["Core.cpu"]
        self.slabs = Slabs(library, self.cpu + facts["CpuCache.slabs"])

    def sheaves(self):
        """The sheaves with objects, where they are, and the number of objects.

        No number: the sheaf has it."""
        facts = self.library.facts
        size, cpus = facts["Slot.bytes"], u64(self.cpu + facts["CpuCache.cpus"])
        count, row = (u64(self.cpu + facts["CpuCache." + name]) for name in ("slot_count", "row_distance"))
        # The hidden rows have the sheaves while the heap profile follows the cache.
        for name, kind in (("slots", ""), ("hidden_row", "hidden ")):
            start = u64(self.cpu + facts["CpuCache." + name])
            slots = read(start, size * count) if start else b""
            # A row for each node, in which each CPU has a slot. No sheaf stands between rows.
            for at in range(count if start else 0):
                place = "CPU %d" % (at % row) + (" for node %d" % (at // row) if count > row else "")
                for which in ("main", "spare"):
                    sheaf = struct.unpack_from("<Q", slots, at * size + facts["Slot." + which])[0]
                    yield sheaf, "the %s%s sheaf of %s" % (kind, which, place), None
        counted = u64(self.cpu + facts["CpuCache.counted"])
        slots = read(counted, size * cpus) if counted else b""
        for cpu in range(cpus if counted else 0):
            sheaf = struct.unpack_from("<Q", slots, cpu * size + facts["Slot.main"])[0]
            # Its word for the capacity is 0, so that no object is pushed there.
            count = min(u32(sheaf + facts["Sheaf.count"]), facts["counted.capacity"])
            yield sheaf, "the counted sheaf of CPU %d" % cpu, count
        for local in self.library.locals():
            if u64(local + facts["Local.cache"]) != self.cpu:
                continue
            window, slot = local + facts["Local.window"], local + facts["Local.slot"]
            places = u64(window + facts["Window.top"]) - u64(window + facts["Window.bottom"])
            main, spare = (u64(slot + facts["Slot." + which]) for which in ("main", "spare"))
            yield main, "the main sheaf of a thread's own slot", min(max(places // 8, 0), 4096)
            yield spare, "the spare sheaf of a thread's own slot", None
        barns = u64(self.cpu + facts["CpuCache.barns"])
        for group in range(u64(self.cpu + facts["CpuCache.groups"])):
            stacks = barns + group * facts["Barn.bytes"] + facts["Barn.stacks"]
            fulls = min(u32(stacks + facts["Stacks.fulls"]), 64)
            for sheaf in words(stacks + facts["Stacks.full"], fulls):
                yield sheaf, "a full sheaf of barn %d" % group, None

    def cached(self):
        """The free objects in sheaves, and where they are."""
        facts, found, seen = self.library.facts, {}, set()
        for sheaf, where, number in self.sheaves():
            if sheaf == 0 or sheaf in seen:
                continue
            seen.add(sheaf)
            count, capacity = struct.unpack("<II", read(sheaf + facts["Sheaf.count"], 8))
            if number is not None:
                count = capacity = number
            if 0 < count <= capacity:
                found.update((start, where) for start in words(sheaf + facts["Sheaf.bytes"], count))
        return found

    def live(self):
        """The start and the record of each object in use."""
        cached = self.cached()
        for page in self.slabs.first_pages():
            taken = ~self.slabs.bitmap(page) & ((1 << self.slabs.objects) - 1)
            while taken:
                index = (taken & -taken).bit_length() - 1
                taken &= taken - 1
                start = self.library.address_of(page) + index * self.slabs.stride
                if start in cached:
                    continue
                record = self.record(start)
                if record is None or record.state == self.library.facts["state.live"]:
                    yield start, record

    def record(self, start):
        if not self.offset:
            return None
        return Record(self.library, start + self.record_offset, self.has_users)


class Record:
    """The library's record of a debugged object."""

    def __init__(self, library, address, has_users, is_run=False):
        facts, word = library.facts, u64(address + library.facts["Record.word"])
        self.library, self.address, self.has_users = library, address, has_users
        self.asked = word & ((1 << facts["word.asked_bits"]) - 1)
        self.state = word >> facts["word.state_shift"] & 15
        self.family = word >> facts["word.family_shift"] & 15
        if is_run:
            self.asked = u64(address + facts["Record.run_bytes"])

    def state_text(self, is_taken, where=None):
        """The state; `where` names the sheaf that the object is in."""
        names = {
            "live": "live",
            "never": "free, never used",
            "busy": "a thread is at work on it",
            "looked_at": "free, a thread looks at it",
        }
        for name, text in names.items():
            if self.state == self.library.facts["state." + name]:
                return text
        if self.state == self.library.facts["state.free"]:
            if where:
                return "free in %s" % where
            return "free, in the quarantine" if is_taken else "free in its slab"
        return "its record was overwritten: state %d" % self.state

    def user(self, which):
        """Thread, CPU, time and frames of the last allocation (0) or free (1); None if unknown."""
        facts = self.library.facts
        if not self.has_users:
            return None
        track = self.address + facts["Record.users"] + which * facts["Track.bytes"]
        thread = u32(track + facts["Track.thread"])
        if thread == 0:
            return None
        stack = self.library.frames(u32(track + facts["Track.stack"]))
        return thread, u32(track + facts["Track.cpu"]), u64(track + facts["Track.time_ms"]), stack

    def print_history(self):
        for which, verb in enumerate(("allocated", "freed")):
            user = self.user(which)
            if user is None:
                continue
            thread, cpu, time_ms, stack = user
            when = "at %.3f s of CLOCK_MONOTONIC" % (time_ms / 1000)
            print("  %s by thread %d on CPU %d, %s" % (verb, thread, cpu, when))
            for number, pc in enumerate(stack):
                print("    #%-2d %s" % (number, symbol(pc)))
            if not stack:
                print("    the stack is not known")


def symbol(pc):
    """A return address with its function, and with file and line where they are known."""
    text = gdb.execute("info symbol 0x%x" % (pc - 1), to_string=True).strip()
    name = "" if text.startswith("No symbol") else " " + re.sub(r" in section .*", "", text)
    line = gdb.find_pc_line(pc - 1)
    where = " (%s:%d)" % (line.symtab.filename, line.line) if line.symtab else ""
    return "0x%x%s%s" % (pc, name, where)


def caller(stack):
    """The innermost frame outside the library: in a static program the first are the library's."""
    frames = [symbol(pc) for pc in stack]
    outside = [frame for frame in frames if not re.match(r"0x[0-9a-f]+ <?uslab(_|::)", frame)]
    return (outside or frames)[0]


def bytes_text(number):
    return "%d byte%s" % (number, "" if number == 1 else "s")


def relation(address, start, size):
    if address < start:
        return "%s before" % bytes_text(start - address)
    if address == start:
        return "the start of"
    if address >= start + size:
        return "%s behind the end of" % bytes_text(address - start - size)
    return "%s inside" % bytes_text(address - start)


def print_relation(address, start, size, name):
    where = relation(address, start, size)
    print("0x%x is %s object 0x%x of cache %s" % (address, where, start, name))


def print_run(library, address, page):
    """An address in a large object."""
    facts, start = library.facts, library.address_of(page)
    pages = u32(library.descriptor(page) + facts["large.pages"])
    debugged = u32(library.descriptor(page) + facts["large.debugged"])
    if library.page_of(address) >= page + pages:
        return False
    if debugged == 0:
        where = relation(address, start, pages * library.page_bytes)
        print("0x%x is %s large object 0x%x" % (address, where, start))
        print("  live, %d pages" % pages)
        return True
    has_users = debugged & facts["letter.users"] != 0
    # The record stands at the start of the pages before the first one.
    record = Record(library, start - library.page_bytes, has_users, is_run=True)
    print("0x%x is %s large object 0x%x" % (address, relation(address, start, record.asked), start))
    print("  %s, %d bytes requested, %d pages" % (record.state_text(True), record.asked, pages))
    record.print_history()
    return True


def print_object(library, slabs, cache, name, address):
    """An address in a slab."""
    spill = cache.record_offset if cache else 0
    page, index = slabs.place(address, spill)
    slab = library.address_of(page)
    if index is None:
        print("0x%x lies behind the last object of slab 0x%x of cache %s" % (address, slab, name))
        return
    start = slab + index * slabs.stride
    is_taken = not slabs.bitmap(page) >> index & 1
    record = cache.record(start) if cache else None
    pointer = start + (cache.offset if record else 0)
    size = record.asked if record else cache.bytes if cache else slabs.stride
    print_relation(address, pointer, size, name)
    where = cache.cached().get(start) if cache and is_taken else None
    if record:
        state = record.state_text(is_taken, where)
    elif not is_taken:
        state = "free in its slab"
    else:
        state = "free in %s" % where if where else "live"
    family = ", of %s" % FAMILIES[record.family] if record and record.family in FAMILIES else ""
    asked = "%d bytes requested" % size if record else "%d bytes" % size
    print("  %s, %s%s; object %d of slab 0x%x" % (state, asked, family, index, slab))
    if record:
        record.print_history()


def find(library, address):
    facts = library.facts
    page = library.page_of(address)
    owner = library.owner(page)
    id = library.id_of(owner)
    if id == 0:
        around = library.around(page)
        if around:
            page, owner = around
            id = library.id_of(owner)
            cache = library.cache(id) if id >= facts["id.first_cache"] else None
            if id == facts["id.large"] and print_run(library, address, page):
                return
            # An object that is a run of pages: the page map names the first alone.
            end = page + cache.slabs.pages if cache and cache.slabs.objects == 1 else page
            if library.page_of(address) < end:
                start = library.address_of(page)
                where = cache.cached().get(start)
                print_relation(address, start, cache.bytes, cache.name)
                print("  %s, %d bytes" % ("free in %s" % where if where else "live", cache.bytes))
                return
        print("0x%x lies in pages of uslab that hold no object" % address)
    elif id == facts["id.large"]:
        print_run(library, address, page)
    elif id == facts["id.sampled"]:
        print("0x%x lies in the pool of guarded objects (USLAB_GUARD)" % address)
    elif id < facts["id.first_heap"]:
        print("0x%x lies in memory of the library itself: a sheaf" % address)
    elif id < facts["id.first_cache"]:
        bare = u64(owner + facts["Slot.parked"])
        print_object(library, Slabs(library, bare + facts["bare.slabs"]), None, "heap", address)
    else:
        cache = library.cache(id)
        if cache is None:
            raise gdb.GdbError("uslab: the page map names cache %d, which does not exist" % id)
        print_object(library, cache.slabs, cache, cache.name, address)


def address_of(text):
    try:
        return int(text, 0)
    except ValueError:
        return int(gdb.parse_and_eval(text)) & 0xFFFF_FFFF_FFFF_FFFF


class Uslab(gdb.Command):
    """Show caches and objects of uslab. `uslab help` lists the commands."""

    def __init__(self):
        super().__init__("uslab", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, text, from_tty):
        print(HELP)


class Help(gdb.Command):
    """List the commands for uslab."""

    def __init__(self):
        super().__init__("uslab help", gdb.COMMAND_DATA, gdb.COMPLETE_NONE)

    def invoke(self, text, from_tty):
        print(HELP)


class Caches(gdb.Command):
    """List the caches: `uslab caches`.

Columns: id, bytes of an object, live objects, free objects in sheaves, slabs, bytes of a slab,
name. Size classes of private heaps that have no cache yet are not listed."""

    def __init__(self):
        super().__init__("uslab caches", gdb.COMMAND_DATA, gdb.COMPLETE_NONE)

    def invoke(self, text, from_tty):
        for library in libraries():
            print("caches of %s" % library.file)
            heads = ("id", "size", "live", "cached", "slabs", "slab", "name")
            print("%5s %8s %10s %8s %7s %8s  %s" % heads)
            for cache in library.caches():
                slabs, cached = cache.slabs, len(cache.cached())
                live, slab_bytes = max(slabs.taken - cached, 0), slabs.pages * library.page_bytes
                row = (cache.id, cache.bytes, live, cached, slabs.count(), slab_bytes, cache.name)
                print("%5d %8d %10d %8d %7d %8d  %s" % row)


class Find(gdb.Command):
    """Show the object around an address: `uslab find ADDRESS`.

ADDRESS is any expression. With letter U of USLAB_DEBUG the history of the object is shown too."""

    def __init__(self):
        super().__init__("uslab find", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, text, from_tty):
        if not text.strip():
            raise gdb.GdbError("uslab find: an address is missing")
        address = address_of(text.strip())
        holding = [library for library in libraries() if library.contains(address)]
        if not holding:
            print("0x%x is not memory of uslab" % address)
        for library in holding:
            find(library, address)


class Objects(gdb.Command):
    """List the live objects of a cache: `uslab objects CACHE [LIMIT]`.

CACHE is a name or an id. 20 objects are listed, unless LIMIT is given."""

    def __init__(self):
        super().__init__("uslab objects", gdb.COMMAND_DATA)

    def complete(self, text, word):
        try:
            names = [cache.name for library in libraries() for cache in library.caches()]
            return [name for name in names if name.startswith(word)]
        except gdb.GdbError:
            return []

    def invoke(self, text, from_tty):
        arguments = gdb.string_to_argv(text)
        if len(arguments) not in (1, 2) or not all(limit.isdigit() for limit in arguments[1:]):
            raise gdb.GdbError("uslab objects: give a cache, and perhaps a limit")
        named, limit = arguments[0], int(arguments[1]) if len(arguments) == 2 else 20
        caches = [cache for library in libraries() for cache in library.caches()]
        chosen = [cache for cache in caches if cache.name == named or str(cache.id) == named]
        if not chosen:
            why = "uslab objects: there is no cache %s; `uslab caches` lists them"
            raise gdb.GdbError(why % named)
        for cache in chosen:
            self.list(cache, limit)

    def list(self, cache, limit):
        count = 0
        print("live objects of cache %s, %d bytes each" % (cache.name, cache.bytes))
        for start, record in cache.live():
            count += 1
            if count > limit:
                continue
            asked = "  %d bytes requested" % record.asked if record else ""
            user = record.user(0) if record else None
            by = "  allocated at %s" % caller(user[3]) if user and user[3] else ""
            print("  0x%x%s%s" % (start + cache.offset, asked, by))
        print("%d live objects%s" % (count, ", %d of them listed" % limit if count > limit else ""))


Uslab()
Help()
Caches()
Find()
Objects()
