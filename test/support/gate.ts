/** For what must happen before the timeout of a gate or a service would make it happen. */
export const promptly = { timeout: 4_000 };
