//! The software fabric.

/// One end of an in-process byte stream.
#[derive(Debug)]
pub struct Pipe {
    _private: (),
}
