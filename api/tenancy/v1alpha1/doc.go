// Package v1alpha1 contains the API types of tenancy: a Workspace is an isolated Kubernetes-style API of its own.
//
// +kubebuilder:object:generate=true
// +groupName=tenancy.atoll.dev
package v1alpha1

//go:generate go tool controller-gen object paths=. crd:headerFile=crds/header.txt paths=. output:crd:dir=crds

import (
	"embed"
	"io/fs"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of tenancy, and the prefix of its labels, annotations and finalizers.
const Group = "tenancy.atoll.dev"

// Version is the version of the types in this package.
const Version = "v1alpha1"

// WorkspaceResource is the resource of Workspaces.
var WorkspaceResource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "workspaces"}

//go:embed crds/*.yaml
var crds embed.FS

// CRDs returns the CustomResourceDefinitions of the root, each as YAML: those of Workspaces and WorkspaceTypes.
func CRDs() ([][]byte, error) { return matching("crds/*_workspace*.yaml") }

// WorkspaceCRDs returns the CustomResourceDefinitions of the group that workspaces have, each as YAML.
func WorkspaceCRDs() ([][]byte, error) { return matching("crds/*.yaml") }

func matching(pattern string) ([][]byte, error) {
	names, err := fs.Glob(crds, pattern)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, 0, len(names))
	for _, name := range names {
		data, err := crds.ReadFile(name)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}
