// Reads a manifest as those do that it is for, with no field that they do not know:
//
//	go run . compose FILE
//	go run . kubernetes FILE|FOLDER
//
// Kustomize builds what is in a folder. It prints what it has read as JSON, each object of Kubernetes on a line.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	read := map[string]func(string){"compose": compose, "kubernetes": kubernetes}
	read[os.Args[1]](os.Args[2])
}

func compose(file string) {
	options, err := cli.NewProjectOptions([]string{file})
	check(err)
	project, err := options.LoadProject(context.Background())
	check(err)
	show(project)
}

// kubernetes reads what kustomize builds from a folder, or the objects in a file.
func kubernetes(path string) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, monitoringv1.AddToScheme, networkingv1.AddToScheme,
		policyv1.AddToScheme,
	} {
		check(add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := os.ReadFile(path)
	if err != nil {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
		check(err)
		text, err = resources.AsYaml()
		check(err)
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		object, _, err := decoder.Decode(document, nil, nil)
		check(err)
		show(object)
	}
}

func show(value any) {
	check(json.NewEncoder(os.Stdout).Encode(value))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
