package apiserver

import (
	"fmt"
	"runtime/debug"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/version"
)

// KubernetesVersion returns the version of Kubernetes in this binary, such as v1.36.3.
// Upstream's release build passes it to the linker. Here the Go toolchain has recorded
// it, except in test binaries, which only know the minor version.
func KubernetesVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "k8s.io/kubernetes" {
				return module.Version
			}
		}
	}
	return "v" + version.DefaultKubeBinaryVersion + ".0+unknown"
}

// binaryVersion is an effective version with the actual version information of this binary.
type binaryVersion struct {
	basecompatibility.MutableEffectiveVersion
}

// Info is the response of the API server at /version.
func (v binaryVersion) Info() *apimachineryversion.Info {
	info := v.MutableEffectiveVersion.Info()
	if info != nil {
		info.GitVersion = KubernetesVersion()
	}
	return info
}

// ComponentVersions returns a registry like the process-wide default one, with the
// actual versions. Each server gets its own.
func ComponentVersions() (basecompatibility.ComponentGlobalsRegistry, error) {
	registry := basecompatibility.NewComponentGlobalsRegistry()
	effective := binaryVersion{compatibility.DefaultBuildEffectiveVersion()}
	if err := registry.Register(basecompatibility.DefaultKubeComponent, effective, utilfeature.DefaultMutableFeatureGate); err != nil {
		return nil, fmt.Errorf("register the version of Kubernetes: %w", err)
	}
	return registry, nil
}
