SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  // By default it shows the document to validator.swagger.io.
  validatorUrl: "none",
});
