//! JSON into template values, and template values into text as Python prints them.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::Value as Json;

/// Converts without loss; keys stay in order.
pub(crate) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => n
            .as_u64()
            .map(Value::from)
            .or_else(|| n.as_i64().map(Value::from))
            .unwrap_or_else(|| Value::from(n.as_f64().unwrap_or(f64::NAN))),
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(key, value)| (key.as_str(), from_json(value))),
        ),
    }
}

/// The value as a float, if that is what it is.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `str(value)`.
pub(crate) fn python_str(value: &Value) -> String {
    match as_float(value) {
        Some(x) if x.is_nan() => "nan".to_owned(),
        Some(x) if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_owned(),
        Some(x) => python_float(x),
        None => value.to_string(),
    }
}

/// `repr` of a finite float: the shortest digits that read back, an exponent outside 1e-4 to 1e16.
pub(crate) fn python_float(x: f64) -> String {
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = x.to_string();
        if plain.contains('.') {
            plain
        } else {
            format!("{plain}.0")
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_as_python_prints_them() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
        ] {
            assert_eq!(python_float(x), expected);
        }
    }
}
