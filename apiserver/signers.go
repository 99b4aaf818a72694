package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/kubernetes/pkg/apis/certificates"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// onlySigners is the name of the admission plugin. It cannot be disabled: RBAC cannot restrict the signer of a request.
const onlySigners = "AtollSigners"

// signersPlugin rejects CertificateSigningRequests to any other signer than the only one of a user's group (Config.OnlySigners).
type signersPlugin struct {
	*admission.Handler
	signers map[string]string // by group
}

var _ admission.ValidationInterface = signersPlugin{}

func withSigners(o *kubeoptions.AdmissionOptions, signers map[string]string) error {
	plugin := signersPlugin{admission.NewHandler(admission.Create), signers}
	return addRequired(o, onlySigners, lifecycle.PluginName, plugin, "users with a bootstrap token could then request the certificates of other users")
}

// Validate implements admission.ValidationInterface.
func (p signersPlugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	request, is := a.GetObject().(*certificates.CertificateSigningRequest)
	if !is || a.GetSubresource() != "" {
		return nil
	}
	for _, group := range a.GetUserInfo().GetGroups() {
		if signer, restricted := p.signers[group]; restricted && request.Spec.SignerName != signer {
			return admission.NewForbidden(a, fmt.Errorf("users of group %s may request only certificates of the signer %s", group, signer))
		}
	}
	return nil
}
