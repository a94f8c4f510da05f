// A browser gives pages from the disk no worker, and so no search. There the worker's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.worker = new Promise(done => frame.addEventListener("load", () => {
        // The script calls the frame's own postMessage, which would send to the frame itself.
        frame.contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
        done(frame.contentWindow);
      }));
      document.body.append(frame);
    }
    postMessage(data) {
      this.worker.then(worker => worker.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
