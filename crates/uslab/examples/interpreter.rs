//! A small Lisp whose cells come from a local cache: a pair of plain loads and stores for each cell
//! that the interpreter makes and drops, and no `unsafe`.
//!
//! The interpreter has one thread, so it has a sheaf of its own. An expression is a tree of
//! `LocalBox` cells, which go back to the sheaf when the value is dropped.
//!
//! ```sh
//! cargo run --release --example interpreter
//! ```

use uslab::{Cache, LocalBox, LocalCache};

/// A value: a number, a primitive, or a pair of cells.
enum Value<'c> {
    Number(i64),
    Name(&'static str),
    Pair(Cell<'c>, Cell<'c>),
    Nothing,
}

type Cell<'c> = LocalBox<'c, Value<'c>>;

struct Interpreter<'c> {
    cells: &'c LocalCache<'c, Value<'c>>,
    made: u64,
}

impl<'c> Interpreter<'c> {
    fn cell(&mut self, value: Value<'c>) -> Cell<'c> {
        self.made += 1;
        self.cells.insert(value).unwrap_or_else(|_| panic!("out of memory"))
    }

    /// `(name first second)`
    fn call(&mut self, name: &'static str, first: Value<'c>, second: Value<'c>) -> Value<'c> {
        let end = self.cell(Value::Nothing);
        let second = self.cell(second);
        let tail = self.cell(Value::Pair(second, end));
        let first = self.cell(first);
        let middle = self.cell(Value::Pair(first, tail));
        let name = self.cell(Value::Name(name));
        Value::Pair(name, middle)
    }

    /// The number that a value stands for.
    fn evaluate(&mut self, value: &Value<'c>) -> i64 {
        match value {
            Value::Number(number) => *number,
            Value::Nothing | Value::Name(_) => 0,
            Value::Pair(head, arguments) => {
                let mut numbers = Vec::new();
                let mut at = arguments;
                while let Value::Pair(argument, rest) = &**at {
                    numbers.push(self.evaluate(argument));
                    at = rest;
                }
                match &**head {
                    Value::Name("add") => numbers.iter().sum(),
                    Value::Name("multiply") => numbers.iter().product(),
                    _ => 0,
                }
            }
        }
    }

    /// The `n`th Fibonacci number, by expressions that are made and dropped.
    fn fibonacci(&mut self, n: i64) -> i64 {
        if n < 2 {
            return n;
        }
        let (before, last) = (self.fibonacci(n - 2), self.fibonacci(n - 1));
        let sum = self.call("add", Value::Number(before), Value::Number(last));
        self.evaluate(&sum)
    }
}

static CELLS: Cache<Value<'static>> = Cache::new("lisp-cell");

pub fn main() {
    let local = CELLS.local().expect("out of memory");
    let mut interpreter = Interpreter { cells: &local, made: 0 };
    assert_eq!(interpreter.fibonacci(20), 6765);
    let six = interpreter.call("multiply", Value::Number(2), Value::Number(3));
    assert_eq!(interpreter.evaluate(&six), 6);
    drop(six);
    let stats = CELLS.stats().expect("the cache is in use");
    println!("{} cells made, {} slabs; {} free in the sheaf", interpreter.made, stats.slabs, local.held());
    assert_eq!(stats.active_objects, 0);
}
