// Package multicluster decides about Services that several clusters share, as the Multi-Cluster Services API
// (multicluster.x-k8s.io) describes them: what all clusters import of one exported Service, which objects they get for it,
// and which endpoints of a cluster the others learn.
//
// It is pure: facts in, objects and conditions out. Package services reads and writes the API.
package multicluster

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// ExportResource is the resource of ServiceExports.
func ExportResource() schema.GroupVersionResource {
	return schema.GroupVersionResource(mcsv1beta1.SchemeGroupVersion.WithResource(mcsv1beta1.ServiceExportPluralName))
}

// ImportResource is the resource of ServiceImports.
func ImportResource() schema.GroupVersionResource {
	return schema.GroupVersionResource(mcsv1beta1.SchemeGroupVersion.WithResource(mcsv1beta1.ServiceImportPluralName))
}

// DerivedAnnotation on a ServiceImport names the Service that programs use in its place.
const DerivedAnnotation = "multicluster.kubernetes.io/derived-service"

// CRDs returns the CustomResourceDefinitions of the group, each as YAML.
func CRDs() ([][]byte, error) { return [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD}, nil }

const derivedPrefix = "derived-"

// DerivedName returns the name of the Service that is derived from the ServiceImport of a name. A user is unlikely to choose
// it, so it does not collide with the Services of an importing cluster.
func DerivedName(namespace, name string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	return derivedPrefix + strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])[:10])
}

// MayBeDerived reports whether a Service may have been derived from a ServiceImport, by its name.
func MayBeDerived(name string) bool {
	return strings.HasPrefix(name, derivedPrefix) && len(name) == len(derivedPrefix)+10
}
