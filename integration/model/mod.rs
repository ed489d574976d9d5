//! Model test: random policies, clients and upstreams drive the real session, engine and store in simulated time. They
//! also drive a plain model. After each step, the test compares budgets, gauges, replies and deliveries of Weir and the
//! model.
//!
//! For a longer run, set `WEIR_MODEL_STEPS` and `WEIR_MODEL_SEED`: `cargo nextest run --release -E 'test(model)'`.

mod client;
mod driver;
mod limits;
mod policy;

use crate::faults::random::Random;
use driver::World;

/// Number of steps in one world. A world has a policy that sometimes changes, a state file, and many sessions.
const STEPS_OF_WORLD: u64 = 5_000;

/// Number of steps in each of the eight tests: a million steps in total.
const STEPS: u64 = 125_000;

/// Tests that run concurrently, each with its own seeds.
macro_rules! tests {
    ($($name:ident: $test:literal;)*) => {
        $(
            #[test]
            fn $name() {
                run($test);
            }
        )*
    };
}

tests! {
    random_sessions_do_what_the_plain_model_does_1: 1;
    random_sessions_do_what_the_plain_model_does_2: 2;
    random_sessions_do_what_the_plain_model_does_3: 3;
    random_sessions_do_what_the_plain_model_does_4: 4;
    random_sessions_do_what_the_plain_model_does_5: 5;
    random_sessions_do_what_the_plain_model_does_6: 6;
    random_sessions_do_what_the_plain_model_does_7: 7;
    random_sessions_do_what_the_plain_model_does_8: 8;
}

fn run(test: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let steps = number("WEIR_MODEL_STEPS").unwrap_or(STEPS);
    let seed = number("WEIR_MODEL_SEED").unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut totals = driver::Totals::default();
    for world in 0..steps.div_ceil(STEPS_OF_WORLD) {
        let seed = seed.wrapping_mul(1 << 40).wrapping_add(test << 32).wrapping_add(world);
        println!("world with the seed {seed}");
        let done = runtime.block_on(async { World::new(Random::new(seed, &[])).play(STEPS_OF_WORLD).await });
        totals.add(&done);
    }
    println!("{totals:?}");
    // Check that the worlds had enough events to test something.
    assert!(
        totals.delivered > steps / 500 && totals.refused > steps / 200 && totals.refunded > steps / 400,
        "{totals:?}"
    );
    assert!(totals.left_in_delay > steps / 2_000 && totals.crashed > steps / 2_000, "{totals:?}");
}
