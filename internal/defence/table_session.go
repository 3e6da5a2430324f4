package defence

// sessionRows: who may use the data plane, and what uploads may do.
var sessionRows = [...]Entry{
	{
		Name: SessionAccess, Where: "internal/agent/session_auth.go",
		Keeps:  "clients without the sandbox's access token",
		Proofs: []Proof{{"internal/agent", "TestAccessToken|TestSignedFiles", Any}},
	},
	{
		Name: SessionToken, Where: "internal/agent/session.go",
		Keeps:  "an access token that is exchanged by who does not know it",
		Proofs: []Proof{{"internal/agent", "TestInit", Any}},
	},
	{
		Name: SessionOrder, Where: "internal/agent/session.go",
		Keeps:  "a late retry that undoes what was settled after it",
		Proofs: []Proof{{"internal/agent", "TestInit", Any}},
	},
	{
		Name: QueryUnambiguous, Where: "internal/agent/session_auth.go",
		Keeps:  "a query that the signer and the agent read in two ways",
		Proofs: []Proof{{"internal/agent", "TestSignedFiles|TestFilesRefusals", Any}},
	},
	{
		Name: SignatureChecked, Where: "internal/agent/session_auth.go",
		Keeps:  "requests for files that nobody has signed",
		Proofs: []Proof{{"internal/agent", "TestSignedFiles|FuzzSignedURLs", Any}},
	},
	{
		Name: SignatureUser, Where: "internal/agent/session_auth.go",
		Keeps:  "a signature that is moved to another path by a colon in the user's name",
		Proofs: []Proof{{"internal/agent", "FuzzSignedURLs", Any}},
	},
	{
		Name: SignatureExpires, Where: "internal/agent/session_auth.go",
		Keeps:  "signed requests after their end",
		Proofs: []Proof{{"internal/agent", "TestSignedFiles|FuzzSignedURLs", Any}},
	},
	{
		Name: DataPlanePaths, Where: "dataplane.go",
		Keeps:  "the control plane, and all that is not known, from who is forwarded",
		Proofs: []Proof{{".", "TestDataPlaneIsAnAllowlist", Any}},
	},
	{
		Name: FilesInert, Where: "internal/agent/files_http.go",
		Keeps:  "scripts in a payload's file that run in a browser as the server's own",
		Proofs: []Proof{{"internal/agent", "TestDownloadHeaders", Any}},
	},
	{
		Name: UploadPathsUnique, Where: "internal/agent/files_upload.go",
		Keeps:  "a form that says two things of one file",
		Proofs: []Proof{{"internal/agent", "TestForms|TestFormBounds", Any}},
	},
	{
		Name: UploadFormSize, Where: "internal/agent/files_multipart.go",
		Keeps:  "forms that take the agent's memory, or its time, without end",
		Proofs: []Proof{{"internal/agent", "TestFormBounds", Any}},
	},
	{
		Name: UploadFormWhole, Where: "internal/agent/files_multipart.go",
		Keeps:  "a form that was cut and passes for a whole one",
		Proofs: []Proof{{"internal/agent", "TestFormBounds|FuzzForms", Any}},
	},
	{
		Name: MetadataBound, Where: "internal/agent/files_metadata.go",
		Keeps:  "descriptions of files that grow with what a payload writes beside them",
		Proofs: []Proof{{"internal/agent", "TestMetadataOfPayloads", Any}},
	},
	{
		Name: ComposeApart, Where: "internal/agent/files_compose.go",
		Keeps:  "a composition that removes its own result",
		Proofs: []Proof{{"internal/agent", "TestCompose", Any}},
	},
}
