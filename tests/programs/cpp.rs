//! A C++ compile: two units heavy with templates through g++, its compiler proper, the assembler
//! and the linker.
//!
//! The object files and the program must have the same bytes as those of a compile without the
//! allocator. An uninitialised read in a compiler appears as a difference long before it appears as
//! a crash. The program, full of maps, strings and regular expressions, must print the same too.

use std::path::PathBuf;
use std::sync::OnceLock;

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(compile => compiles_the_same);

const UNITS: usize = 2;

/// The results of a compile: the bytes of the objects and of the program, and the program's output.
struct Build {
    files: Vec<(String, Vec<u8>)>,
    printed: String,
}

fn compiles_the_same(mode: Mode) {
    static PLAIN: OnceLock<Build> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| build(Mode::Plain));
    let ours = build(mode);
    for ((name, wanted), (_, got)) in plain.files.iter().zip(&ours.files) {
        assert!(wanted == got, "{mode:?}: {name} differs from the one compiled without the allocator");
    }
    assert_eq!(plain.printed, ours.printed, "{mode:?}: the compiled program prints something else");
    assert_eq!(ours.printed.lines().count(), UNITS, "{mode:?}: one line a unit: {}", ours.printed);
}

fn build(mode: Mode) -> Build {
    let scratch = Scratch::new("cpp");
    let compiler = tool("g++", "g++");
    let sources: Vec<String> = (0..UNITS).map(|k| format!("unit{k}.cpp")).collect();
    for (k, name) in sources.iter().enumerate() {
        scratch.write(name, unit(k));
    }
    scratch.write("main.cpp", main_unit());
    let compile =
        Program::new(&compiler).args(["-std=c++17", "-O2", "-Wall", "-c", "main.cpp"]).args(&sources);
    let compiled = compile.limit_s(600).run_clean(&scratch, mode);
    compiled.expect(compiled.stderr().is_empty(), "the compiler wrote to standard error");

    let mut names: Vec<String> = sources.iter().map(|s| s.replace(".cpp", ".o")).collect();
    names.push("main.o".into());
    Program::new(&compiler).args(["-o", "program"]).args(&names).run_clean(&scratch, mode);
    let printed = Program::new(scratch.join("program")).run_clean(&scratch, mode).stdout();
    names.push("program".into());
    let read = |path: PathBuf| std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let files = names.into_iter().map(|n| (n.clone(), read(scratch.join(&n)))).collect();
    Build { files, printed }
}

/// A unit: recursion over a type list and an index sequence, a matrix of constant size, a variant
/// with a visitor, and the heavy headers of the standard library, all with names and constants of
/// its own.
fn unit(k: usize) -> String {
    let depth = 60 + 10 * k;
    let size = 6 + k;
    format!(
        r#"
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>
namespace unit{k} {{
template <int N> struct Node {{
    std::unique_ptr<Node<N - 1>> next = std::make_unique<Node<N - 1>>();
    std::string name = "node " + std::to_string(N);
    std::uint64_t sum() const {{ return name.size() * N + next->sum(); }}
}};
template <> struct Node<0> {{ std::uint64_t sum() const {{ return {k}; }} }};
template <std::size_t R, std::size_t C> struct Matrix {{
    std::uint64_t at[R][C] = {{}};
    template <std::size_t D> Matrix<R, D> operator*(const Matrix<C, D> &o) const {{
        Matrix<R, D> m;
        for (std::size_t i = 0; i < R; i++)
            for (std::size_t j = 0; j < D; j++)
                for (std::size_t n = 0; n < C; n++) m.at[i][j] += at[i][n] * o.at[n][j];
        return m;
    }}
}};
template <std::size_t... I> auto tuple_of(std::index_sequence<I...>) {{
    return std::make_tuple(std::vector<std::pair<int, std::string>>{{{{int(I), std::to_string(I * I)}}}}...);
}}
template <class T, std::size_t... I> std::uint64_t fold(const T &t, std::index_sequence<I...>) {{
    return (std::uint64_t{{0}} + ... + (std::get<I>(t).front().second.size() * (I + {k})));
}}
using Value = std::variant<int, double, std::string, std::vector<int>, std::map<int, std::string>>;
struct Weigh {{
    std::size_t operator()(int v) const {{ return v; }}
    std::size_t operator()(double v) const {{ return std::size_t(v * 2); }}
    std::size_t operator()(const std::string &v) const {{ return v.size(); }}
    std::size_t operator()(const std::vector<int> &v) const {{ return std::accumulate(v.begin(), v.end(), 0); }}
    std::size_t operator()(const std::map<int, std::string> &v) const {{ return v.begin()->second.size(); }}
}};
std::string run() {{
    Matrix<{size}, {size}> a, b;
    for (std::size_t i = 0; i < {size}; i++)
        for (std::size_t j = 0; j < {size}; j++) a.at[i][j] = i * {k} + j, b.at[i][j] = i ^ (j + {k});
    auto m = a * b * a;
    auto t = tuple_of(std::make_index_sequence<{size} * 2>());
    std::map<std::string, std::unordered_map<int, std::vector<std::string>>> deep;
    for (int i = 0; i < 2000; i++) deep[std::to_string(i % 97)][i % 13].push_back(std::string(i % 200, 'a' + i % 26));
    std::uint64_t bytes = 0;
    for (auto &[key, inner] : deep)
        for (auto &[n, list] : inner)
            for (auto &s : list) bytes = bytes * 31 + key.size() * n + s.size();
    std::regex word("([a-z]+)-([0-9]+)");
    std::string text;
    for (int i = 0; i < 300; i++) text += "item-" + std::to_string(i * {k}) + " ";
    auto found = std::distance(std::sregex_iterator(text.begin(), text.end(), word), std::sregex_iterator());
    std::vector<Value> values{{7, 2.5, std::string("text"), std::vector<int>{{1, 2, {k}}}, std::map<int, std::string>{{{{1, "x"}}}}}};
    std::size_t weight = 0;
    for (auto &v : values) weight += std::visit(Weigh(), v);
    std::function<std::uint64_t(int)> fib = [&](int n) {{ return n < 2 ? std::uint64_t(n) : fib(n - 1) + fib(n - 2); }};
    std::ostringstream out;
    out << "unit {k}: " << Node<{depth}>().sum() << ' ' << m.at[1][2] << ' ' << fold(t, std::make_index_sequence<{size} * 2>())
        << ' ' << bytes << ' ' << found << ' ' << weight << ' ' << fib(15 + {k});
    return out.str();
}}
}}
"#
    )
}

fn main_unit() -> String {
    let declared: String =
        (0..UNITS).map(|k| format!("namespace unit{k} {{ std::string run(); }}\n")).collect();
    let called: String = (0..UNITS).map(|k| format!("    std::cout << unit{k}::run() << '\\n';\n")).collect();
    format!("#include <iostream>\n#include <string>\n{declared}int main() {{\n{called}}}\n")
}
