//! g++ and clang: one unit full of templates and of the standard library's headers; and a project
//! of many small units through make, as a kernel is built. The compiler proper, which allocates, is
//! a child of g++, and the library preloaded goes with it.
//!
//! The project's units have no headers of the library: many functions over many structures, so that
//! as in a kernel there are many short processes and no long one. For function only, a unit is one
//! empty function.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;
use std::fmt::Write;

pub const UNIT: Workload = Workload {
    name: "g++",
    title: |scale| title_of_unit("g++", scale),
    run: |place| run_of_unit(place, "g++", "g++"),
};

pub const CLANG: Workload = Workload {
    name: "clang",
    title: |scale| title_of_unit("clang++", scale),
    run: |place| run_of_unit(place, "clang++", "clang"),
};

/// Instantiations of every template; 0 is an empty program.
fn instances(scale: Scale) -> u32 {
    scale.pick(0, 1, 3)
}

fn title_of_unit(compiler: &str, scale: Scale) -> String {
    format!("{compiler} -O1: one unit of templates and std headers, {} instances", instances(scale))
}

fn run_of_unit(place: &Place, compiler: &str, package: &str) -> Result<Usage, String> {
    place.write("unit.cpp", &templates(instances(place.scale)))?;
    let mut compiler = place.measured(compiler, package)?;
    compiler.args(["-std=c++17", "-O1", "-c", "unit.cpp", "-o", "unit.o"]);
    process::run_watched(compiler)
}

fn templates(instances: u32) -> String {
    if instances == 0 {
        return "int main() { return 0; }\n".into();
    }
    let mut text = String::from(
        "#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Key { int value; bool operator<(const Key &o) const { return value < o.value; } };
template <int N> struct Table {
    std::map<Key<N>, std::variant<int, std::string, std::vector<Key<N>>>> rows;
    std::unordered_map<std::string, std::shared_ptr<Key<N>>> names;
    std::vector<std::function<int(const Key<N> &)>> calls;
    int run(const std::string &text) {
        std::istringstream in(text);
        for (std::string word; in >> word;) {
            names.emplace(word, std::make_shared<Key<N>>(Key<N>{int(word.size()) + N}));
            rows.emplace(Key<N>{int(word.size())}, word);
            calls.push_back([word](const Key<N> &k) { return k.value + int(word.size()); });
        }
        std::vector<Key<N>> sorted;
        for (auto &name : names) sorted.push_back(*name.second);
        std::sort(sorted.begin(), sorted.end());
        int sum = 0;
        for (auto &key : sorted) for (auto &call : calls) sum += call(key);
        return sum;
    }
};
",
    );
    // Alone it takes two seconds: not for a first look.
    if instances > 1 {
        text.push_str(
            "#include <regex>
bool matches(const std::string &text) { return std::regex_match(text, std::regex(\"[a-z]+(-[0-9]{1,3})*\")); }
",
        );
    } else {
        text.push_str("bool matches(const std::string &text) { return !text.empty(); }\n");
    }
    text.push_str("int run_all(const std::string &text) {\n    int sum = matches(text);\n");
    for i in 0..instances {
        let _ = writeln!(text, "    sum += Table<{i}>().run(text);");
    }
    text.push_str("    return sum;\n}\n");
    text
}

pub const PROJECT: Workload = Workload { name: "build", title: title_of_project, run: run_of_project };

/// Units, and functions in each.
fn project(scale: Scale) -> (u32, u32) {
    scale.pick((2, 0), (12, 8), (60, 24))
}

fn title_of_project(scale: Scale) -> String {
    let (units, functions) = project(scale);
    format!("make -j: {units} small units of {functions} functions, g++ -O2")
}

fn run_of_project(place: &Place) -> Result<Usage, String> {
    let (units, functions) = project(place.scale);
    // Asked for here, so that its absence names its package and not a line of make's.
    place.plain("g++", "g++")?;
    let objects: Vec<String> = (0..units).map(|unit| format!("u{unit}.o")).collect();
    for unit in 0..units {
        place.write(&format!("u{unit}.cpp"), &small_unit(unit, functions))?;
    }
    let makefile = format!("all: {}\n%.o: %.cpp\n\t@g++ -O2 -c $< -o $@\n", objects.join(" "));
    place.write("Makefile", &makefile)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = place.measured("make", "make")?;
    make.arg("-s").arg(format!("-j{jobs}"));
    process::run(make)
}

fn small_unit(unit: u32, functions: u32) -> String {
    let mut text = format!("// Unit {unit} of a generated project.\n");
    for i in 0..functions {
        let _ = write!(
            text,
            "struct s{unit}_{i} {{ s{unit}_{i} *next; long key; int flags; char name[{}]; }};
static long walk{unit}_{i}(const s{unit}_{i} *list, long key) {{
    long sum = {i};
    for (; list; list = list->next) {{
        if (list->key == key) return sum;
        switch (list->flags & 7) {{
        case 0: sum += list->key; break;
        case 1: sum ^= list->name[key & 7]; break;
        case 2: sum -= key * {}; break;
        default: sum = sum * 31 + list->flags;
        }}
    }}
    return sum;
}}
long entry{unit}_{i}(s{unit}_{i} **lists, int n, long key) {{
    long sum = 0;
    for (int i = 0; i < n; i++) if (lists[i]) sum += walk{unit}_{i}(lists[i], key + i);
    return sum;
}}
",
            16 + i % 48,
            i + 3
        );
    }
    if functions == 0 {
        let _ = writeln!(text, "void empty{unit}() {{}}");
    }
    text
}
