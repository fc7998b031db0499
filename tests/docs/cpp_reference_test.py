# SPDX-License-Identifier: Apache-2.0
"""The list of public headers, and the C++ pages that docs/cpp_reference.py makes of them."""

import importlib.util
import pathlib
import re

TOP = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("cpp_reference", TOP / "docs" / "cpp_reference.py")
cpp_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cpp_reference)
PUBLIC = sum(cpp_reference.groups().values(), [])


def included(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)


def test_headers_are_listed_once():
    assert PUBLIC and len(set(PUBLIC)) == len(PUBLIC)
    assert len({pathlib.Path(header).name for header in PUBLIC}) == len(PUBLIC)  # by which breathe finds them


def test_public_headers_include_public_headers_only():
    assert [(header, other) for header in PUBLIC for other in included(TOP / header) if other not in PUBLIC] == []


def test_examples_and_pages_include_public_headers_only():
    sources = [path for folder in ("examples", "tests/consumer") for path in (TOP / folder).rglob("*.c*") if path.is_file()]
    pages = [TOP / "README.md", *(TOP / "docs").rglob("*.md")]
    used = [(path.name, other) for path in [*sources, *pages] for other in included(path)]
    assert used and [(name, other) for name, other in used if other not in PUBLIC] == []


def test_comments_become_doxygens():
    assert cpp_reference.converted("""\
// SPDX-License-Identifier: Apache-2.0
// A file with #1 and `#2`.
//
//   code(); // here
#include <a>  // no documentation

// Not of the next line.

class Other;  // elsewhere.h
enum class Kind : int;  // elsewhere.h

// A struct.
struct Pair {  // not taken for a member's
  int x = 0;  // the first
              // of two
  // The second.
  const char* y = "//";
};
""") == """\
/** @file

A file with \\#1 and `#2`.
@verbatim

  code(); // here
@endverbatim
*/
#include <a>  // no documentation


class Other;  // elsewhere.h

/**
A struct.
*/
struct Pair {
/**<
not taken for a member's
*/
  int x = 0;
/**<
the first
of two
*/
/**
The second.
*/
  const char* y = "//";
};
"""


def test_comments_of_c_headers_become_doxygens():
    assert cpp_reference.converted("""\
/* SPDX-License-Identifier: Apache-2.0
 * A file.
 */
typedef struct Opaque Opaque; /* lives
                                 long */
typedef struct Known Known;
typedef struct Known {
  int x; /* one */
} Known;
""") == """\
/** @file

A file.
*/
struct Opaque {};
/**<
lives
long
*/
struct Known;
struct Known {
  int x;
/**<
one
*/
};
"""


TYPE = re.compile(r"(?P<inner> *)(?:typedef )?(?:class|struct|enum class|enum|union) (?:\[\[\w+\]\] )?(?P<name>\w+)[^;(]*\{")
OTHER = re.compile(r"using (?P<name>\w+) =|(?!return|static_assert|[A-Z_]+\()[A-Za-z][\w:<>,&*\[\] ]*[ &*](?P<function>\w+)\(")


def uncommented(text):
    """The names of a header's types, aliases and functions that have no comment. Those in classes count where they are
    types and public. Specialisations need none; an alias or a function right below another line shares its comment."""
    text = re.sub(r"^namespace internal \{.*?^\}  // namespace internal$", "", text, flags=re.M | re.S)
    found, above, public = [], "", True
    for line in text.splitlines():
        if access := re.match(r" (public|private|protected):|(class|struct) ", line):
            public = access[1] == "public" or access[2] == "struct"
        kind, other = TYPE.match(line), OTHER.match(line)
        if not re.search(r"//|\*/|template <>", above + line):
            if kind and (public or not kind["inner"]):
                found.append(kind["name"])
            elif other and not above.strip():
                found.append(other["name"] or other["function"])
        if not line.startswith("template <typename"):
            above = line
    return found


def test_public_declarations_have_a_comment():
    assert [(header, name) for header in PUBLIC for name in uncommented((TOP / header).read_text())] == []


def test_declarations_without_a_comment_are_found():
    assert uncommented("""\
// SPDX-License-Identifier: Apache-2.0
// A file.

struct Bare {
  struct Inner {
    int x = 0;
  };
};

// With a comment.
template <typename T>
class Told {
  struct Hidden {};
};

using Bytes = int;

int Count(int x);
int Shared(int x);

template <>
struct DTypeOf<int> {};
""") == ["Bare", "Inner", "Bytes", "Count"]
