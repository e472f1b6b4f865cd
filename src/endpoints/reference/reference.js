SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  // The document has an absolute URL, which generated clients need. The page has to call its own
  // service, even behind a path prefix of a proxy.
  responseInterceptor(response) {
    if (response.url.endsWith("/openapi.json")) {
      const servers = [{ url: new URL(".", location.href).href }];
      response.text = JSON.stringify({ ...JSON.parse(response.text), servers });
    }
    return response;
  },
});
