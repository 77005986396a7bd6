//! The `keyway` command.
fn main() {}
