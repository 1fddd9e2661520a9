"""The completion script of each shell. All call `satchel completion --words -- LINE...`, which prints a word
and its description per line, separated by a tab.
"""

BASH = r"""# satchel completion for bash: eval "$(satchel completion bash)" in ~/.bashrc
_satchel() {
    local word about line current="${COMP_WORDS[COMP_CWORD]}"
    [ "$current" = "=" ] && current=""
    COMPREPLY=()
    while IFS=$'\t' read -r word about; do
        if [ "$word" = ":files" ]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$current")
        else
            [[ "$COMP_WORDBREAKS" == *=* ]] && [[ "$word" == --*=* ]] && word="${word#*=}"
            COMPREPLY+=("$word")
        fi
    done < <("${COMP_WORDS[0]}" completion --words -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}  # names such as hf:USER/REPO:Q4_K_M are one word
complete -F _satchel satchel
"""

ZSH = r"""#compdef satchel
# satchel completion for zsh: eval "$(satchel completion zsh)" in ~/.zshrc, behind compinit
_satchel() {
    local -a found
    local word about files=""
    while IFS=$'\t' read -r word about; do
        if [[ "$word" == ":files" ]]; then
            files=1
        else
            found+=("${word//:/\\:}${about:+:$about}")
        fi
    done < <("${words[1]}" completion --words -- "${(@)words[1,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe satchel found
    [[ -n "$files" ]] && _files
}
if [[ "${funcstack[1]}" == "_satchel" ]]; then _satchel "$@"; else compdef _satchel satchel; fi
"""

FISH = r"""# satchel completion for fish: satchel completion fish > ~/.config/fish/completions/satchel.fish
function __satchel_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] completion --words -- $words 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c satchel -f -a '(__satchel_complete)'
"""

# PowerShell before 7.3 passes no empty argument to a program: --next stands for it.
POWERSHELL = r"""# satchel completion for PowerShell: satchel completion powershell >> $PROFILE
Register-ArgumentCompleter -Native -CommandName satchel -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements |
        Where-Object { $_.Extent.StartOffset -lt $cursorPosition } |
        ForEach-Object { $_.Extent.Text })
    $options = @('completion', '--words')
    if ($wordToComplete -eq '') { $options += '--next' }
    & $words[0] @options -- @words 2>$null | ForEach-Object {
        $word, $about = $_ -split "`t", 2
        if ($word -eq ':files') {
            [System.Management.Automation.CompletionCompleters]::CompleteFilename($wordToComplete)
        } else {
            if (-not $about) { $about = $word }
            [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $about)
        }
    }
}
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH, "powershell": POWERSHELL}
