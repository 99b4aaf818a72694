package main

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/function"
)

// label is the function label(text, parts...): it joins parts to a name that all types accept.
type label struct{}

func newLabel() function.Function { return label{} }

func (label) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "label"
}

func (label) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary:           "Joins parts to a name.",
		Parameters:        []function.Parameter{function.StringParameter{Name: "prefix", Description: "The first part."}},
		VariadicParameter: function.StringParameter{Name: "parts", Description: "Further parts."},
		Return:            function.StringReturn{},
	}
}

func (label) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var prefix string
	var parts []string
	if resp.Error = req.Arguments.Get(ctx, &prefix, &parts); resp.Error != nil {
		return
	}
	if prefix == "" {
		resp.Error = function.NewArgumentFuncError(0, "the prefix is empty")
		return
	}
	resp.Error = resp.Result.Set(ctx, strings.ToLower(strings.Join(append([]string{prefix}, parts...), "-")))
}
