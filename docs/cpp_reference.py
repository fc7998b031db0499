# SPDX-License-Identifier: Apache-2.0
"""Makes the C++ pages of the site, a page for each group of cmake/public_headers.txt; docs/build.sh calls it.

    cpp_reference.py WORK PAGES   writes Doxygen's XML to WORK/xml (for breathe) and the pages to PAGES

The headers' comments are plain ones. Copies in Doxygen's form are what Doxygen reads.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

TOP = pathlib.Path(__file__).resolve().parents[1]
LIST = TOP / "cmake" / "public_headers.txt"
SETTINGS = """
INPUT = .
RECURSIVE = YES
FULL_PATH_NAMES = YES
STRIP_FROM_PATH = .
OUTPUT_DIRECTORY = ..
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
EXTRACT_ALL = YES
AUTOLINK_SUPPORT = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
"""
# The parts of a file, and of a class, that a page shows, in this order.
SECTIONS = ("briefdescription detaileddescription innerclass public-type public-static-func public-func public-attrib "
            "public-static-attrib define enum typedef func var")


def groups():
    """{title: [header, ...]}, as the list has them."""
    found = {}
    for line in LIST.read_text().split("\n\n", 1)[1].splitlines():
        if line.startswith("# "):
            headers = found[line[2:]] = []
        elif line:
            headers.append(line)
    return found


def doxygen_comment(lines, mark=""):
    """A comment in Doxygen's form: what is indented is code, and no character means a command or a tag."""
    out, code = ["/**" + mark], False
    for i, line in enumerate(lines):
        following = next((rest for rest in lines[i:] if rest.strip()), "")
        if code != following.startswith("  "):
            code = not code
            out.append("@verbatim" if code else "@endverbatim")
        pieces = re.split(r"(`[^`]*`)", line)
        out.append(line if code else "".join(
            piece if i % 2 else re.sub(r"([\\@<>#&%$])", r"\\\1", piece) for i, piece in enumerate(pieces)))
    return "\n".join(out + ["@endverbatim"] * code + ["*/"])


def converted(text):
    """A header's text with its comments in Doxygen's form, without what is internal."""
    text = re.sub(r"^namespace internal \{.*?^\}  // namespace internal$", "", text, flags=re.M | re.S)
    text = re.sub(r"^enum class \w+ : \w+;.*\n", "", text, flags=re.M)  # declared elsewhere; Doxygen lists it here, too
    if text.startswith("/*"):  # C
        def slashes(comment):
            column = comment.start() - text.rfind("\n", 0, comment.start()) - 1
            return re.sub(r"\n *(\* ?)?", "\n" + " " * column + "// ", "//" + comment[1].rstrip())

        text = re.sub(r"/\*((?:.|\n)*?)\*/", slashes, text)
    out, block, column, first = [], [], None, True

    def end_block(attached):
        nonlocal block, column, first
        if block and (first or attached):
            mark = " @file\n" if first else "" if column is None else "<"
            out.append(doxygen_comment(block, mark))
            first = False
        block, column = [], None

    for line in text.splitlines():
        whole = re.match(r"( *)//( ?.*)$", line)
        if whole:
            if column not in (None, len(whole[1])):  # the comment at the end of the line before is over
                end_block(True)
            if not re.match(r" SPDX| ---.*---$", whole[2]):
                block.append(whole[2].removeprefix(" "))
            continue
        end_block(attached=line.strip() or column is not None)
        end = re.match(r'((?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*\S) +// ?(.*)$', line)
        if end and not re.match(r"#(?!define)| *}|(class|struct) \w+;", line):
            column, block = line.index("//", len(end[1])), [end[2]]
            line = end[1]
        out.append(line)
    text = "\n".join(out) + "\n"
    # C names its types twice; breathe takes that for two declarations.
    text = re.sub(r"typedef struct (\w+)\s+\1;(?=\n/\*\*<)", r"struct \1 {};", text)
    text = re.sub(r"typedef struct (\w+)\s+\1;", r"struct \1;", text)
    return re.sub(r"typedef (struct|enum) (\w+) \{((?:.|\n)*?)\n\} \2;", r"\1 \2 {\3\n};", text)


def line_of(path):
    """The line at which the class of this XML file begins."""
    return int(ElementTree.parse(path).find("compounddef/location").get("line"))


def move_to_files(xml):
    """Moves the members of namespaces to the files that declare them, in their order, since breathe would show each
    namespace anew in each file; takes private classes out. Returns the names that each file then has."""
    members = [member for path in xml.glob("namespace*.xml") for member in ElementTree.parse(path).iter("memberdef")]
    for member in members:
        member.find("name").text = member.find("qualifiedname").text
    names = {}
    for path in (path for kind in ("class", "struct", "*_8h") for path in xml.glob(kind + "*.xml")):
        tree = ElementTree.parse(path)
        compound = tree.getroot().find("compounddef")
        location = compound.find("location").get("file")
        inner = [ref for ref in compound.findall("innerclass") if ref.get("prot") == "public"]
        for reference in compound.findall("innerclass") + compound.findall("innernamespace"):
            compound.remove(reference)
        if compound.get("kind") == "file":
            inner.sort(key=lambda ref: line_of(xml / f"{ref.get('refid')}.xml"))
            for member in (member for member in members if member.find("location").get("file") == location):
                kind = {"function": "func", "variable": "var"}.get(member.get("kind"), member.get("kind"))
                ElementTree.SubElement(compound, "sectiondef", kind=kind).append(member)
            named = [*inner, *compound.iter("name")]
            names[location] = {re.sub(r"<.*", "", element.text).split("::")[-1] for element in named}
        for i, reference in enumerate(inner):
            compound.insert(1 + i, reference)
        tree.write(path)
    return names


def main(work, pages):
    for folder in (work, pages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    names = []
    for title, headers in groups().items():
        names.append(title.lower().replace(" ", "_"))
        parts = [f"# {title}"]
        for header in headers:
            copy = work / "headers" / header
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(converted((TOP / header).read_text()))
            parts.append(f"## {header}\n\n```{{doxygenfile}} {copy.name}\n:sections: {SECTIONS}\n```")
        (pages / f"{names[-1]}.md").write_text("\n\n".join(parts) + "\n")
    (pages / "index.md").write_text("\n".join(["# C++", "", "```{toctree}", "", *names, "```"]) + "\n")
    subprocess.run(["doxygen", "-"], cwd=work / "headers", input=SETTINGS, text=True, check=True)
    found = move_to_files(work / "xml")
    for header in sum(groups().values(), []):
        text = (work / "headers" / header).read_text()
        declared = re.findall(r"^(?:class|struct|enum class) (?:\[\[\w+\]\] )?(\w+)[^;(]*\{", text, re.M)
        if missing := set(declared) - found[header]:
            sys.exit(f"{header}: Doxygen has not found {', '.join(sorted(missing))}; is a comment inside an expression?")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
