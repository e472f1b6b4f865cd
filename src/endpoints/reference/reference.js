SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  // The document has an absolute URL, since generated clients need one. The page calls its own
  // service, also behind a prefix of a proxy.
  responseInterceptor(response) {
    if (response.url.endsWith("/openapi.json")) {
      const servers = [{ url: new URL(".", location.href).href }];
      response.text = JSON.stringify({ ...JSON.parse(response.text), servers });
    }
    return response;
  },
});
