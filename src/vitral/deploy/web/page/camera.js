// The camera, seen in the page until a picture is taken.

const WHY = {
  NotAllowedError: "The camera was not allowed. The browser asks once; later it can be allowed beside the address of the page.",
  NotFoundError: "There is no camera here. Choose a picture instead.",
  NotReadableError: "The camera is in use by another program. Close that, and try again.",
};

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

export class Camera {
  constructor(video) {
    this.video = video;
    this.stream = null;
  }

  async start() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      throw new Error(WHY[error.name] ?? `The camera does not start (${error.message || error.name}). Choose a picture instead.`);
    }
    this.stop(); // that of a click before: else it stays on
    this.video.srcObject = this.stream = stream;
    await this.video.play();
  }

  stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = this.video.srcObject = null;
  }
}
