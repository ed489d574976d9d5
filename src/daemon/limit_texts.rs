//! Explanations of the limits of a configuration, for the administration.

use crate::admin::{LimitText, LimitTexts};
use crate::config::Config;
use crate::explain::{Explanation, explanations};

/// Explains all limits of a configuration.
pub fn limit_texts(config: &Config) -> LimitTexts {
    let text = |Explanation { limit, sentence, lines }: Explanation| (limit, LimitText { sentence, details: lines });
    LimitTexts { file: config.problems.path.clone(), limits: explanations(config).into_iter().map(text).collect() }
}
