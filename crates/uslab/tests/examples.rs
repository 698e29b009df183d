//! The examples of `Cache` and `LocalCache` run, in both modes.
#![cfg(not(loom))]
#![allow(dead_code, reason = "examples are programs, and their public items too")]

#[path = "../examples/btree.rs"]
mod btree;
#[path = "../examples/interpreter.rs"]
mod interpreter;

#[test]
fn a_b_tree_of_boxes_agrees_with_the_standard_one() {
    btree::main();
}

#[test]
fn an_interpreter_takes_its_cells_from_a_local_cache() {
    interpreter::main();
}
