//! Tests of this layer.
