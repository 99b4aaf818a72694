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

// KubernetesVersion is the version of Kubernetes in this binary, such as
// v1.36.3. Upstream's release build passes it to the linker; here the Go
// toolchain has recorded it, except in the binaries of tests, which only know
// the minor version.
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

// truthful is an effective version that knows what it is a version of.
type truthful struct {
	basecompatibility.MutableEffectiveVersion
}

// Info is what the API server tells at /version.
func (v truthful) Info() *apimachineryversion.Info {
	info := v.MutableEffectiveVersion.Info()
	if info != nil {
		info.GitVersion = KubernetesVersion()
	}
	return info
}

// ComponentVersions is a registry like the one that a process has by default,
// whose versions are true. Each server gets one of its own.
func ComponentVersions() (basecompatibility.ComponentGlobalsRegistry, error) {
	registry := basecompatibility.NewComponentGlobalsRegistry()
	effective := truthful{compatibility.DefaultBuildEffectiveVersion()}
	if err := registry.Register(basecompatibility.DefaultKubeComponent, effective, utilfeature.DefaultMutableFeatureGate); err != nil {
		return nil, fmt.Errorf("register the version of Kubernetes: %w", err)
	}
	return registry, nil
}
