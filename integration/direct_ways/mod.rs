//! Tests of `weir egress`: the register of direct ways, the rules that are made from it, and a real edge.

mod edge;
mod register;
