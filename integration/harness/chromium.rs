//! Chromium without a window, driven over WebDriver.

use super::PATIENCE;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper::Method;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;
use tokio::runtime::Runtime;

/// Arguments of Chromium: without a window, also as root, and without requests of its own.
const ARGUMENTS: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A running Chromium with an empty profile. Dropping it ends Chromium and its driver.
pub struct Chromium {
    runtime: Runtime,
    client: Client,
    driver: Child,
    /// Output of the driver, open as long as the driver writes to it.
    _output: Lines<BufReader<ChildStdout>>,
    _profile: tempfile::TempDir,
}

/// Command of ChromeDriver that is not in the standard of WebDriver.
#[derive(Debug)]
struct Extension {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

impl Chromium {
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Chromedriver chooses a free port itself, and prints it.
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = command.spawn().unwrap();
        let mut output = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = output.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix("ChromeDriver was started successfully on port ")?.trim_end_matches('.').parse().ok()
        });
        let port: u16 = port.expect("no port in the output of chromedriver");
        let profile_argument = format!("--user-data-dir={}", profile.path().display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([&*profile_argument]).collect();
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let capabilities: Capabilities = serde_json::from_value(capabilities).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut builder = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        builder.capabilities(capabilities);
        let client = runtime.block_on(builder.connect(&format!("http://127.0.0.1:{port}"))).unwrap();
        Self { runtime, client, driver, _output: output, _profile: profile }
    }

    pub fn open(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).unwrap();
    }

    pub fn url(&self) -> url::Url {
        self.runtime.block_on(self.client.current_url()).unwrap()
    }

    /// Runs the body of a function in the page; returns its value. A promise is awaited.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        let run = self.client.execute(script, arguments.to_vec());
        self.runtime.block_on(run).unwrap_or_else(|error| panic!("{error}: {script}"))
    }

    /// Runs an expression repeatedly until its value is neither null, false, 0 nor empty; returns the value.
    pub fn wait(&self, what: &str, expression: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.run(&format!("return ({expression}) || null"), &[]);
            if !value.is_null() {
                return value;
            }
            if Instant::now() > deadline {
                panic!("no {what} after {PATIENCE:?} on {}: {:?}\n{}", self.url(), self.log(), self.text());
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    pub fn sees(&self, text: &str) {
        self.wait(text, &format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns the text that the page shows.
    pub fn text(&self) -> String {
        self.run("return document.body.innerText", &[]).as_str().unwrap().to_owned()
    }

    /// Waits for the element with this XPath, and clicks on it as a mouse does.
    pub fn click(&self, path: &str) {
        let deadline = Instant::now() + PATIENCE;
        // A live page may replace the element between the search and the click.
        let mut failure = None;
        while Instant::now() < deadline {
            let clicked = self.runtime.block_on(async {
                let element = self.client.wait().at_most(PATIENCE).for_element(Locator::XPath(path)).await?;
                element.click().await
            });
            match clicked {
                Ok(()) => return,
                Err(error) => failure = Some(error),
            }
        }
        panic!("cannot click on {path}: {failure:?}\n{}", self.text());
    }

    /// Types a text into the element with this CSS selector, in place of its present text.
    pub fn fill(&self, selector: &str, text: &str) {
        let filled = self.runtime.block_on(async {
            let element = self.client.wait().at_most(PATIENCE).for_element(Locator::Css(selector)).await?;
            element.clear().await?;
            element.send_keys(text).await
        });
        filled.unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    /// Presses keys, as the keyboard does: `\u{e004}` is the tabulator, `\u{e007}` is Enter.
    pub fn press(&self, keys: &str) {
        let pressed = self.runtime.block_on(async { self.client.active_element().await?.send_keys(keys).await });
        pressed.unwrap();
    }

    /// Sets width and height of the page, in pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the preferred colours: `light` or `dark`.
    pub fn set_colours(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features);
    }

    /// Writes a picture of the visible part of the page, as PNG.
    pub fn picture(&self, path: &Path) {
        let picture = self.runtime.block_on(self.client.screenshot()).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, picture).unwrap();
    }

    /// Returns the messages of the console since the last call: errors of scripts, of requests, and of the policy.
    pub fn log(&self) -> Vec<String> {
        let entries = self.extension("se/log", json!({ "type": "browser" }));
        entries.as_array().unwrap().iter().map(|entry| format!("{}: {}", entry["level"], entry["message"])).collect()
    }

    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.extension("goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    fn extension(&self, path: &'static str, body: Value) -> Value {
        self.runtime.block_on(self.client.issue_cmd(Extension { path, body })).unwrap()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The end of the session ends Chromium. The driver ends it, too, if the session cannot.
        let _ = self.runtime.block_on(self.client.clone().close());
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.driver),
            rustix::process::Signal::TERM,
        );
        let _ = self.driver.wait();
    }
}
