package server

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/infra/containment"
)

// protectedPaths returns the paths of this server's own files, as they are written and as they are
// resolved. No Provider may grant access to them. run is the directory of providers' processes.
func (c *Config) protectedPaths(run string) ([]string, error) {
	paths := []string{c.DataDir, run}
	for _, file := range []string{c.TokenFile, c.EncryptionConfigFile, c.Audit.WebhookConfigFile, c.Audit.LogPath} {
		if file != "" && file != "-" { // "-" is standard output
			paths = append(paths, file)
		}
	}
	if file, ok := strings.CutPrefix(c.Datastore, "sqlite://"); ok {
		paths = append(paths, file, file+"-wal", file+"-shm")
	}
	var out []string
	for _, path := range paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("find the path of %s: %w", path, err)
		}
		out = append(out, absolute)
		if resolved, err := filepath.EvalSymlinks(absolute); err == nil {
			out = append(out, resolved)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// providerFiles rejects a Provider whose spec.files reach files of this server. Other servers have other
// files: each checks again before it starts a provider.
func providerFiles(protected []string) apiserver.AdmissionStep {
	return apiserver.AdmissionStep{Resource: v1alpha1.ProviderResource.GroupResource(), Check: func(_ context.Context, r *apiserver.AdmissionRequest) error {
		files, _, _ := unstructured.NestedSlice(r.Object.Object, "spec", "files") // the schema reports other types
		if r.Old != nil {
			was, _, _ := unstructured.NestedSlice(r.Old.Object, "spec", "files")
			if apiequality.Semantic.DeepEqual(was, files) {
				return nil // another server may have accepted it, and its status must be writable here
			}
		}
		if problems := reachProtected(files, protected); len(problems) > 0 {
			return apierrors.NewInvalid(r.Object.GroupVersionKind().GroupKind(), r.Name, problems)
		}
		return nil
	}}
}

// reachProtected returns the entries of spec.files that reach a protected path.
func reachProtected(files []any, protected []string) (problems field.ErrorList) {
	for i, file := range files {
		object, _ := file.(map[string]any)
		path, _ := object["path"].(string)
		if path == "" {
			continue
		}
		at := field.NewPath("spec", "files").Index(i).Child("path")
		candidates := []string{filepath.Clean(path)}
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, resolved)
		}
		for _, candidate := range candidates {
			if n, dir := containment.Overlap([]containment.File{{Path: candidate}}, protected); n >= 0 {
				problems = append(problems, field.Invalid(at, path, containment.OverlapProblem(candidate, dir)))
				break
			}
		}
	}
	return problems
}
