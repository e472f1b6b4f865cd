SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
});
